"""Connection to a Tinker server: checks that fail within seconds, requests that notice a lost server, reconnection.

The SDK retries a server that does not answer for minutes without a word. So the server is asked for its health
first, and while a request is waited for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, need, shown
from envweave_gym.training.tinker.local_server import LocalServer

HEALTH_TIMEOUT_S = 2.0
POLL_S = 0.5
"""Interval of the health checks while a request is waited for."""
SILENCE_S = 30.0
"""A server that accepts connections but answers no health check for this time is lost."""
NOTICE_S = 1.0
"""A wait for a lost server is reported after this time."""
CLOSE_S = 5.0
MODELS_TIMEOUT_S = 20.0
LOST_STATUS = (404, 410)
"""Statuses with which a restarted server answers for a session, model or sampler that it does not know."""


class ServerLost(EnvweaveError):
    """Raised if the server does not answer or has forgotten this run, which then resumes from a checkpoint."""


class RequestRefused(NotAvailable):
    """Raised if the server refuses a request; the text is the server's, the cause the SDK's exception."""


class Connection:
    """A client of one Tinker server, with a session that is replaced when the server was lost."""

    def __init__(self, base_url: str = "", *, local: LocalServer | None = None) -> None:
        """Check key and server, and open a session.

        The server is ``local``, else at ``base_url``, else at ``TINKER_BASE_URL``, else the hosted service.
        """
        self.local = local
        self._key = local.api_key if local else _key()
        if base_url and not urlsplit(base_url).netloc:
            raise InvalidArgument(f"--base-url {shown(base_url)} is no URL; give http://HOST:PORT")
        self.base_url = _resolved(local.base_url if local else base_url)
        self._health_lock = threading.Lock()
        self._last_answer = self._last_check = time.monotonic()
        if not self._answers():
            raise NotAvailable(
                f"no Tinker server answers at {self.base_url}; start one with: envweave tinker serve, or give "
                "--local, or another --base-url"
            )
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        self._sdk = need("tinker", "tinker", "training with Tinker")
        self.models = self._models()
        self.service = self._new_service()

    def _models(self) -> dict[str, Any]:
        """Return the names of the server's models and what it says about each; this checks the key."""

        def ask() -> Any:
            client = self._rest_client
            if client is None:
                return self._new_service().get_server_capabilities()
            return client.get_server_capabilities().result()

        try:
            found = _in_thread(ask).result(timeout=MODELS_TIMEOUT_S)
        except FutureTimeout:
            raise NotAvailable(f"the Tinker server at {self.base_url} does not name its models") from None
        except self._sdk.AuthenticationError as error:
            raise InvalidArgument(
                f"the Tinker server at {self.base_url} refuses the key: {_sentence(error)}"
            ) from error
        except self._sdk.TinkerError as error:
            raise NotAvailable(f"the Tinker server at {self.base_url}: {_sentence(error)}") from error
        return {model.model_name: model for model in found.supported_models}

    def _new_service(self) -> Any:
        return self._sdk.ServiceClient(base_url=self.base_url, api_key=self._key)

    def choose_model(self, name: str, default: str) -> str:
        """Return ``name``, or without one ``default``, or the server's first model; raise for one it does not have."""
        if not name:
            return default if default in self.models else next(iter(self.models), default)
        if self.models and name not in self.models:
            some = ", ".join(list(self.models)[:8]) + (", …" if len(self.models) > 8 else "")
            raise InvalidArgument(f"--model {shown(name)} is not served at {self.base_url}; there are {some}")
        return name

    def context_of(self, model: str) -> int | None:
        """Return the context length of a model in tokens, or ``None`` if the server does not say it."""
        return getattr(self.models.get(model), "max_context_length", None)

    def delete_checkpoint(self, path: str) -> None:
        """Delete a checkpoint."""
        client = self._rest_client or self.service.create_rest_client()
        self.call(client.delete_checkpoint_from_tinker_path, path)

    @cached_property
    def _rest_client(self) -> Any:
        """Return the SDK's client without a session, ``None`` where it has none: before tinker 0.36."""
        if not hasattr(self._sdk, "RestClient"):
            return None
        return self._sdk.RestClient(base_url=self.base_url, api_key=self._key)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the SDK that blocks, and wait for its result, or for that of the future it returns."""
        result = self.result(_in_thread(lambda: function(*args, **kwargs)))
        return self.result(result) if hasattr(result, "result") else result

    def result(self, future: Any) -> Any:
        """Wait for the result of an SDK future; raise ``ServerLost`` if the server is gone in the meantime."""
        while True:
            try:
                return future.result(timeout=POLL_S)
            except FutureTimeout as error:
                if _failed_with(future, error):  # the SDK has given up; waiting longer would never end
                    raise ServerLost(
                        f"the Tinker server at {self.base_url} does not answer: {_sentence(error)}"
                    ) from error
                if not self._is_alive():
                    raise ServerLost(f"the Tinker server at {self.base_url} does not answer") from error
            except self._sdk.APIConnectionError as error:
                raise ServerLost(f"the Tinker server at {self.base_url}: {_sentence(error)}") from error
            except Exception as error:
                raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        """Return what a failed request means: a lost server, a refusal, or the exception itself."""
        cause = error if isinstance(error, self._sdk.APIStatusError) else error.__cause__
        if getattr(cause, "status_code", None) in LOST_STATUS:
            return ServerLost(
                f"the Tinker server at {self.base_url} has forgotten this run: {_sentence(error)}"
            )
        if isinstance(error, self._sdk.TinkerError):
            return RequestRefused(f"the Tinker server at {self.base_url}: {_sentence(error)}")
        return error

    def _is_alive(self) -> bool:
        """Check the health, at most every ``POLL_S``; silence counts only after ``SILENCE_S``."""
        with self._health_lock:
            now = time.monotonic()
            if now - self._last_check < POLL_S:
                return True
            answers = self._answers()
            self._last_check = time.monotonic()
            return bool(answers) or (answers is None and self._last_check - self._last_answer < SILENCE_S)

    def _answers(self) -> bool | None:
        """Return whether the server answers; ``None`` if it took the connection and was silent."""
        try:
            with requests.Session() as session:
                session.trust_env = not self._is_loopback  # a proxy would answer for a dead local server
                answer = session.get(f"{self.base_url}/api/v1/healthz", timeout=HEALTH_TIMEOUT_S)
        except requests.exceptions.ReadTimeout:
            return None
        except requests.exceptions.RequestException:
            return False
        if answer.status_code >= 500:  # a gateway says that the server behind it is gone
            return False
        self._last_answer = time.monotonic()
        return True

    @property
    def _is_loopback(self) -> bool:
        return urlsplit(self.base_url).hostname in ("127.0.0.1", "localhost", "::1")

    def reconnect(self, wait_s: float, report: Callable[[str], Any]) -> None:
        """Wait until the server answers again, and open a new session; raise ``NotAvailable`` after ``wait_s``.

        A longer wait is reported.
        """
        self._discard("errored")
        if self.local is not None and not self.local.is_running:
            self.local.restart()
        started, reported = time.monotonic(), False
        while not self._answers():
            waited = time.monotonic() - started
            if waited > wait_s:
                raise NotAvailable(
                    f"the Tinker server at {self.base_url} did not come back within {wait_s:g} s"
                )
            if waited > NOTICE_S and not reported:
                reported = True
                report(
                    f"the Tinker server at {self.base_url} does not answer; waiting up to {wait_s:g} s for it"
                )
            time.sleep(POLL_S)
        self.service = self._new_service()

    def _discard(self, status: str) -> Any:
        """Begin to close the session, and return the future of that, which a lost server never answers."""
        # Each request that was on its way is logged as an error when its session closes.
        logging.getLogger("tinker.lib.retry_handler").addFilter(_is_no_closed_session)
        with suppress(Exception):  # the session belongs to a server that may be gone
            return self.service.close(status)
        return None

    def close(self, status: str = "success") -> None:
        """Close the session, and end the local server if there is one."""
        future = self._discard(status)
        if future is not None and self._answers():
            with suppress(Exception):
                future.result(timeout=CLOSE_S)
        if self.local is not None:
            self.local.close()


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread that may be left behind, and return the future of its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - it is raised again by result()
            future.set_exception(error)

    threading.Thread(target=run, name="Tinker call", daemon=True).start()
    return future


def in_time(function: Callable[[], Any], seconds: float) -> str | None:
    """Call a function that may wait for a server; return ``None``, or why it did not succeed within ``seconds``."""
    try:
        _in_thread(function).result(timeout=seconds)
    except FutureTimeout:
        return f"the server did not answer within {seconds:g} s"
    except Exception as error:  # noqa: BLE001 - the caller reports it
        return str(error)
    return None


def _failed_with(future: Any, error: Exception) -> bool:
    """Return whether a timeout is the failure of the request itself, not the end of a wait for it."""
    # The future of a sample has both kinds of methods, of which those of a standard future warn.
    inner = future.future() if hasattr(future, "future") else future
    return inner.done() and not inner.cancelled() and inner.exception() is error


def _is_no_closed_session(record: logging.LogRecord) -> bool:
    return "holder is closed" not in record.getMessage()


def _key() -> str | None:
    """Return the key of the environment, or ``None`` if the SDK has another source; raise for a wrong one."""
    key = os.environ.get("TINKER_API_KEY", "")
    if not key and (os.environ.get("TINKER_CREDENTIAL_CMD") or _stored_credentials().exists()):
        return None
    if not key:
        raise InvalidArgument(
            "there is no Tinker API key; set TINKER_API_KEY to a key of the hosted service, or to the one that "
            "envweave tinker serve prints, or give --local"
        )
    if not key.startswith(("tml-", "eyJ")):
        raise InvalidArgument("TINKER_API_KEY is no Tinker key, which begins with tml-; set the right one")
    return key


def _stored_credentials() -> Path:
    return Path.home() / ".tinker" / "credentials.json"


def _resolved(base_url: str) -> str:
    """Return the URL that the SDK would use."""
    if base_url or os.environ.get("TINKER_BASE_URL"):
        return (base_url or os.environ["TINKER_BASE_URL"]).rstrip("/")
    return need("tinker.lib.base_url", "tinker", "training with Tinker").resolve_base_url()


def _sentence(error: Exception) -> str:
    """Return the server's own words in an exception of the SDK, in one line."""
    body = getattr(error, "body", None)
    detail = (
        body.get("detail") or body.get("error") or body.get("message") if isinstance(body, dict) else None
    )
    return " ".join(str(detail or error).split())[:500]
