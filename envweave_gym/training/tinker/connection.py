"""Connection to a Tinker server: checks that fail within seconds, requests with deadlines, reconnection.

The SDK retries a server that does not answer for minutes without a word. So the server is asked for its health
first, and while a request is waited for; and a wait that takes longer than those before it is reported.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, need, shown
from envweave_gym.core.loopback import is_loopback_url
from envweave_gym.core.secret_reference import is_reference, read_reference
from envweave_gym.training.tinker.local_server import LocalServer
from envweave_gym.training.tinker.preflight import (
    MODELS_S,
    Model,
    Silent,
    Unreachable,
    check_health,
    checked_url,
    get,
    models_of,
)
from envweave_gym.training.tinker.waiting import FIRST_EXPECTED_S, NOTICE_S, Waits, in_thread, print_line

HEALTH_TIMEOUT_S = 2.0
POLL_S = 0.5
"""Interval of the health checks of a server on this machine while a request is waited for."""
REMOTE_POLL_S = 10.0
"""The same for a server on another machine."""
SILENCE_S = 30.0
"""A server that accepts connections but answers no health check for this time is lost."""
SESSION_S = 60.0
"""Time for a server that answers to open a session."""
ANSWER_S = 1800.0
"""Default of the longest wait for one answer."""
CLOSE_S = 5.0
_HOSTED = "thinkingmachines.dev"
"""The domain of the hosted service."""
LOST_STATUS = (404, 408, 410, 429)
"""Statuses that mean a lost server, besides those from 500 on: a restarted one does not know this session, model or
sampler, and one that is still busy or broken after the retries of the SDK will stay so."""


class ServerLost(EnvweaveError):
    """Raised if the server does not answer or has forgotten this run, which then resumes from a checkpoint."""


class RequestRefused(NotAvailable):
    """Raised if the server refuses a request; the text is the server's, the cause the SDK's exception."""


class Connection:
    """A client of one Tinker server, with a session that is replaced when the server was lost."""

    def __init__(
        self,
        base_url: str = "",
        *,
        local: LocalServer | None = None,
        report: Callable[[str], Any] = print_line,
        answer_s: float = ANSWER_S,
    ) -> None:
        """Check key and server, and open a session.

        The server is ``local``, else at ``base_url``, else at ``TINKER_BASE_URL``, else the hosted service. Waits that
        are longer than expected go to ``report``; one of more than ``answer_s`` seconds raises ``NotAvailable``.
        """
        self.local, self._answer_s = local, answer_s
        self._key = local.api_key if local else _key()
        named = local.base_url if local else base_url or os.environ.get("TINKER_BASE_URL", "")
        option = "--base-url" if local or base_url else "TINKER_BASE_URL"
        self.base_url = checked_url(named, option) if named else _hosted_url()
        self.waits = Waits(report, f"the Tinker server at {self.base_url}")
        self._health_lock = threading.Lock()
        self._last_answer = self._last_check = time.monotonic()
        check_health(self.base_url)
        # The hosted service may want another credential for the key, which the SDK gets; and it finds stored keys.
        by_sdk = self._key is None or (urlsplit(self.base_url).hostname or "").endswith(_HOSTED)
        if not by_sdk:
            self.models = models_of(self.base_url, self._key or "", self.waits)
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        self._sdk = need("tinker", "tinker", "training with Tinker")
        with ExitStack() as opening:
            _filter_log(opening)
            if by_sdk:
                self.models = self._models_by_sdk()
            self.service = self._new_service()
            self._exit = opening.pop_all()

    def _models_by_sdk(self) -> dict[str, Model]:
        """Return the models that the SDK names; this checks the key."""

        def ask() -> Any:
            client = self._rest_client
            if client is None:
                return self._sdk.ServiceClient(
                    base_url=self.base_url, api_key=self._key
                ).get_server_capabilities()
            return client.get_server_capabilities().result()

        found = self._opened(ask, "the names of its models", MODELS_S)
        names = (one.model_name for one in found.supported_models)
        contexts = (getattr(one, "max_context_length", None) for one in found.supported_models)
        return {name: Model(name, context) for name, context in zip(names, contexts, strict=True)}

    def _new_service(self) -> Any:
        """Open a session; it ends with :meth:`close`."""

        def open_session() -> Any:
            return self._sdk.ServiceClient(base_url=self.base_url, api_key=self._key)

        return self._opened(open_session, "a session", SESSION_S)

    def _opened(self, function: Callable[[], Any], what: str, seconds: float) -> Any:
        """Return what a first request returns; its errors say what to do about key, server or version."""
        try:
            return self.result(in_thread(function), what, seconds)
        except RequestRefused as error:
            cause = error.__cause__
            if cause is not None and isinstance(cause, self._sdk.AuthenticationError):
                raise InvalidArgument(
                    f"the Tinker server at {self.base_url} refuses the key: {_sentence(cause)}"
                ) from error
            raise

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
        known = self.models.get(model)
        return None if known is None else known.max_context_length

    def delete_checkpoint(self, path: str) -> None:
        """Delete a checkpoint."""
        client = self._rest_client or self.service.create_rest_client()
        self.call(client.delete_checkpoint_from_tinker_path, path, what="the deletion of an old checkpoint")

    @cached_property
    def _rest_client(self) -> Any:
        """Return the SDK's client without a session, ``None`` where it has none: before tinker 0.36."""
        if not hasattr(self._sdk, "RestClient"):
            return None
        return self._sdk.RestClient(base_url=self.base_url, api_key=self._key)

    def call(self, function: Callable[..., Any], *args: Any, what: str = "an answer", **kwargs: Any) -> Any:
        """Call a function of the SDK that blocks, and wait for its result, or for that of the future it returns."""
        return self.result(self.begin(function, *args, **kwargs), what)

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of the SDK that may block, in a thread; return the future of its result for :meth:`result`.

        If it returns a future itself, that one's result is the result.
        """

        def run() -> Any:
            returned = function(*args, **kwargs)
            return returned.result() if hasattr(returned, "result") else returned

        return in_thread(run)

    def result(self, future: Any, what: str = "an answer", seconds: float | None = None) -> Any:
        """Wait for the result of an SDK future; raise ``ServerLost`` if the server is gone in the meantime.

        ``what`` names it in messages about a long wait. Raise ``NotAvailable`` if the server answers health checks,
        and the result does not come within ``seconds``, by default those of the constructor.
        """
        limit = self._answer_s if seconds is None else seconds
        with self.waits.waiting(what, min(FIRST_EXPECTED_S, limit)) as look:
            while True:
                try:
                    return future.result(timeout=min(POLL_S, limit))
                except FutureTimeout as error:
                    if _failed_with(future, error):  # the SDK has given up; waiting longer would never end
                        raise ServerLost(
                            f"the Tinker server at {self.base_url} does not answer: {_sentence(error)}"
                        ) from error
                    waited = look()
                    if not self._is_alive():
                        raise ServerLost(f"the Tinker server at {self.base_url} does not answer") from error
                    if waited > limit:
                        raise NotAvailable(
                            f"the Tinker server at {self.base_url} has not finished {what} within {limit:g} s; look "
                            "at its log, or give a longer --answer-timeout"
                        ) from error
                except self._sdk.APIConnectionError as error:
                    raise ServerLost(f"the Tinker server at {self.base_url}: {_sentence(error)}") from error
                except Exception as error:
                    raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        """Return what a failed request means: a lost server, a refusal, or the exception itself."""
        cause = error if isinstance(error, self._sdk.APIStatusError) else error.__cause__
        status = getattr(cause, "status_code", None)
        if isinstance(status, int) and (status in LOST_STATUS or status >= 500):
            why = "has forgotten this run" if status in (404, 410) else "does not serve this run"
            return ServerLost(f"the Tinker server at {self.base_url} {why}: {_sentence(error)}")
        if isinstance(error, self._sdk.TinkerError):
            return RequestRefused(f"the Tinker server at {self.base_url}: {_sentence(error)}")
        return error

    def _is_alive(self) -> bool:
        """Check the health, at most every ``POLL_S`` or ``REMOTE_POLL_S``; silence counts after ``SILENCE_S``."""
        with self._health_lock:
            now = time.monotonic()
            if now - self._last_check < (POLL_S if is_loopback_url(self.base_url) else REMOTE_POLL_S):
                return True
            answers = self._answers()
            self._last_check = time.monotonic()
            return bool(answers) or (answers is None and self._last_check - self._last_answer < SILENCE_S)

    def _answers(self) -> bool | None:
        """Return whether the server answers; ``None`` if it took the connection and was silent."""
        try:
            answer = get(f"{self.base_url}/api/v1/healthz", HEALTH_TIMEOUT_S)
        except Silent:
            return None
        except Unreachable:
            return False
        if answer.status >= 500:  # a gateway says that the server behind it is gone
            return False
        self._last_answer = time.monotonic()
        return True

    def reconnect(self, wait_s: float, report: Callable[[str], Any]) -> None:
        """Wait until the server answers again, and open a new session; raise ``NotAvailable`` after ``wait_s``.

        A longer wait is reported.
        """
        self._discard("errored")
        if self.local is not None and not self._answers():
            self.local.restart()
        started, reported = time.monotonic(), False
        while True:
            waited = time.monotonic() - started
            if self._answers():
                try:
                    self.service = self._new_service()
                    return
                except ServerLost:  # it went again; the SDK has waited for it for a while
                    pass
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

    def _discard(self, status: str) -> Any:
        """Begin to close the session, and return the future of that, which a lost server never answers."""
        with suppress(Exception):  # the session belongs to a server that may be gone
            return self.service.close(status)
        return None

    def close(self, status: str = "success") -> None:
        """Close the session, and end the local server if there is one."""
        with self._exit:
            future = self._discard(status)
            if future is not None and self._answers():
                with suppress(Exception):
                    future.result(timeout=CLOSE_S)
            if self.local is not None:
                self.local.close()


def _failed_with(future: Any, error: Exception) -> bool:
    """Return whether a timeout is the failure of the request itself, not the end of a wait for it."""
    # The future of a sample has both kinds of methods, of which those of a standard future warn.
    inner = future.future() if hasattr(future, "future") else future
    return inner.done() and not inner.cancelled() and inner.exception() is error


def _filter_log(exit_stack: ExitStack) -> None:
    """Filter the SDK's log until the end of ``exit_stack``, by a filter for each connection."""
    log, own = logging.getLogger("tinker.lib.retry_handler"), partial(_is_no_handled_failure)
    log.addFilter(own)
    exit_stack.callback(log.removeFilter, own)


def _is_no_handled_failure(record: logging.LogRecord) -> bool:
    """Return whether a line of the SDK is not about a request that :meth:`Connection.result` reports.

    Each request that was on its way is logged as an error, too, when its session closes.
    """
    message = record.getMessage()
    return "holder is closed" not in message and "non-retryable error" not in message


def _key() -> str | None:
    """Return the key of the environment, or ``None`` if the SDK has another source; raise for a wrong one.

    The variable may hold a reference, ``file:PATH``.
    """
    key = os.environ.get("TINKER_API_KEY", "").strip()
    if is_reference(key):
        key = _referenced(key)
    elif not key and (os.environ.get("TINKER_CREDENTIAL_CMD") or _stored_credentials().exists()):
        return None
    if not key:
        raise InvalidArgument(
            "there is no Tinker API key; set TINKER_API_KEY to a key of the hosted service, or to the one that "
            "envweave tinker serve prints, or give --local"
        )
    if not key.startswith(("tml-", "eyJ")):
        raise InvalidArgument("TINKER_API_KEY is no Tinker key, which begins with tml-; set the right one")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidArgument(
            "TINKER_API_KEY has characters that no key has, such as spaces or line breaks; set the key alone"
        )
    return key


def _referenced(reference: str) -> str:
    """Return the key that a reference names; raise ``InvalidArgument`` if there is none."""
    try:
        key = read_reference(reference)
    except KeyError:
        raise InvalidArgument(
            f"TINKER_API_KEY is {shown(reference)}, and that variable is not set; set it to the key"
        ) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "it is no text"
        raise InvalidArgument(
            f"TINKER_API_KEY is {shown(reference)}, which cannot be read ({problem}); name a file with the key"
        ) from None
    if not key:
        raise InvalidArgument(f"TINKER_API_KEY is {shown(reference)}, which is empty; write the key to it")
    return key


def _stored_credentials() -> Path:
    return Path.home() / ".tinker" / "credentials.json"


def _hosted_url() -> str:
    """Return the URL of the hosted service."""
    return need("tinker.lib.base_url", "tinker", "training with Tinker").resolve_base_url()


def _sentence(error: BaseException) -> str:
    """Return the server's own words in an exception of the SDK, in one line."""
    body = getattr(error, "body", None)
    detail = (
        body.get("detail") or body.get("error") or body.get("message") if isinstance(body, dict) else None
    )
    return " ".join(str(detail or error).split())[:500]
