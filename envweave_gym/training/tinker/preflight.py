"""Checks of a Tinker server with plain HTTP requests, before the SDK sends it anything.

The SDK retries for minutes without a word; and once a server has left one of its requests without an answer, it does
not go on in that process, whatever server it is given then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

import requests

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, shown
from envweave_gym.core.loopback import is_loopback_url
from envweave_gym.training.tinker.waiting import Waits, in_thread

HEALTH_S, MODELS_S = 2.5, 20.0
"""Time for the health check, and for the names of the models, which a server may have to load."""
RETRY_S = 0.5
"""Pause before a busy server is asked for its models again."""
_HEALTH, _MODELS = "/api/v1/healthz", "/api/v1/get_server_capabilities"
_LARGEST_ANSWER = 4 << 20
_ADVICE = "start one with: envweave tinker serve, or give --local, or another --base-url"


@dataclass(frozen=True)
class Model:
    """What a server says about a base model."""

    model_name: str
    max_context_length: int | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any] | None:
        """Return the body if it is a JSON object."""
        with suppress(ValueError, RecursionError):
            value = json.loads(self.body)
            return value if isinstance(value, dict) else None
        return None

    def detail(self) -> str:
        """Return the server's own words about an error, in one line."""
        body = self.json() or {}
        words = body.get("detail") or body.get("error") or body.get("message") or f"status {self.status}"
        return " ".join(str(words).split())[:500]


class Silent(EnvweaveError):
    """Raised if a server takes the connection, and does not answer in time."""


class Unreachable(EnvweaveError):
    """Raised if nothing takes the connection, or it breaks."""


def checked_url(url: str, option: str) -> str:
    """Return the URL of a server without a slash at its end; raise ``InvalidArgument`` if it is none."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets that are not closed
        is_url = False
    if not is_url or not url.isprintable() or " " in url:
        raise InvalidArgument(f"{option} {shown(url)} is no URL; give http://HOST:PORT")
    return url.rstrip("/")


def get(url: str, seconds: float, headers: dict[str, str] | None = None) -> Answer:
    """Send a GET request; ``seconds`` limit all of it, the look-up of the name included.

    Raise :class:`Silent` or :class:`Unreachable` if there is no answer.
    """

    def send() -> Answer:
        with requests.Session() as session:
            session.trust_env = not is_loopback_url(url)  # a proxy would answer for a dead local server
            with session.get(url, timeout=seconds, headers=headers, stream=True) as answer:
                return Answer(answer.status_code, answer.raw.read(_LARGEST_ANSWER, decode_content=True))

    try:
        return in_thread(send).result(timeout=seconds)
    except (FutureTimeout, requests.exceptions.ReadTimeout):
        raise Silent(f"{url} does not answer within {seconds:g} s") from None
    except Exception as error:  # of requests, urllib3, or a codec of the body
        raise Unreachable(f"{url} cannot be reached: {error}") from error


def check_health(base_url: str) -> None:
    """Raise ``NotAvailable`` in a sentence unless a Tinker server answers within :data:`HEALTH_S`."""
    try:
        answer = get(f"{base_url}{_HEALTH}", HEALTH_S)
    except Silent:
        raise NotAvailable(
            f"the server at {base_url} takes connections but does not answer within {HEALTH_S:g} s; restart it, or "
            "give --local, or another --base-url"
        ) from None
    except Unreachable:
        raise NotAvailable(f"no Tinker server answers at {base_url}; {_ADVICE}") from None
    if answer.status >= 500:
        raise NotAvailable(
            f"no Tinker server answers at {base_url}: what is in front of it says {answer.detail()}; {_ADVICE}"
        )
    if answer.status not in (401, 403) and (answer.status != 200 or answer.json() is None):
        raise not_a_server(base_url, f"GET {_HEALTH} gives status {answer.status}")


def not_a_server(base_url: str, why: str) -> NotAvailable:
    """Return the error for a server of another kind."""
    return NotAvailable(f"what answers at {base_url} is no Tinker server ({why}); {_ADVICE}")


def models_of(base_url: str, key: str, waits: Waits) -> dict[str, Model]:
    """Return the models of a server by name; this checks the key, and the version of the SDK.

    A server that is busy, or behind a gateway that starts it, is asked again until :data:`MODELS_S` have passed.
    """
    headers = {"X-API-Key": key, "Accept": "application/json"}
    with suppress(PackageNotFoundError):
        headers["X-Stainless-Package-Version"] = version("tinker")
    deadline = time.monotonic() + MODELS_S
    with waits.waiting("the names of its models", expected=0.0) as look:
        while True:
            answer = _answer_of(base_url, headers, deadline, look)
            if answer.status < 500 and answer.status not in (408, 429):
                return _read(base_url, answer)
            if time.monotonic() + RETRY_S > deadline:
                raise NotAvailable(
                    f"the Tinker server at {base_url} does not name its models: {answer.detail()}"
                )
            look()
            time.sleep(RETRY_S)


def _answer_of(base_url: str, headers: dict[str, str], deadline: float, look: Callable[[], float]) -> Answer:
    """Ask for the models; ``look`` is called while nothing comes."""
    left = max(0.1, deadline - time.monotonic())
    future = in_thread(lambda: get(f"{base_url}{_MODELS}", left, headers))
    try:
        while True:
            try:
                return future.result(timeout=RETRY_S)
            except FutureTimeout:
                look()
    except Silent:
        raise NotAvailable(
            f"the Tinker server at {base_url} does not name its models within {MODELS_S:g} s; restart it, or give "
            "--local, or another --base-url"
        ) from None
    except Unreachable:
        raise NotAvailable(f"no Tinker server answers at {base_url}; {_ADVICE}") from None


def _read(base_url: str, answer: Answer) -> dict[str, Model]:
    """Return the models in an answer, or raise what it says."""
    if answer.status == 401:
        raise InvalidArgument(f"the Tinker server at {base_url} refuses the key: {answer.detail()}")
    if answer.status in (400, 403) and answer.json() is not None:
        raise NotAvailable(f"the Tinker server at {base_url} refuses this client: {answer.detail()}")
    listed = (answer.json() or {}).get("supported_models")
    if answer.status != 200 or not isinstance(listed, list):
        raise not_a_server(base_url, f"GET {_MODELS} gives status {answer.status}")
    found: dict[str, Model] = {}
    for one in listed:
        name = one.get("model_name") if isinstance(one, dict) else None
        if isinstance(name, str):
            context = one.get("max_context_length")
            found[name] = Model(name, context if isinstance(context, int) and context > 0 else None)
    return found
