"""Converts error replies of a server to the exceptions that an environment in this process would raise."""

from __future__ import annotations

import builtins
import ssl
from functools import lru_cache
from typing import Any, NoReturn

import msgspec

from envweave_gym.core import faults
from envweave_gym.net.dial import GATEWAY_ERRORS
from envweave_gym.net.websocket import TOO_BIG, ConnectionClosed
from envweave_gym.remote.address import TOKEN
from envweave_gym.wire.messages import Refused

_SAME = (
    "AtCapacity",
    "EnvironmentCrashed",
    "FaultStorm",
    "InvalidAction",
    "InvalidArgument",
    "NotAvailable",
    "ResetNeeded",
    "SessionLost",
    "UnknownEnvironment",
)
_KINDS: dict[str, type[Exception]] = {
    **{name: getattr(faults, name) for name in _SAME},
    "MissingExtra": faults.NotAvailable,
    "NoSession": faults.SessionLost,
    "ValueError": faults.InvalidAction,
    "Unauthorized": faults.NotAvailable,
    "Forbidden": faults.NotAvailable,
    "RequestEntityTooLarge": faults.InvalidArgument,
}
_ABOUT_SERVERS = ("Unauthorized", "Forbidden", "NoSession", "RequestEntityTooLarge")

_TOO_LARGE = 413
"""HTTP status for a request with a body that is too large."""
_UNWELCOME = (1003, 1008, 1010)
"""Codes of WebSocket close frames after which the server would close another WebSocket too."""


class NotAServer(ConnectionError):
    """Error if the peer is not an envweave-gym server; a proxy may have answered, so a retry may succeed."""


def raise_refused(refused: Refused, url: str, why_ended: str = "") -> NoReturn:
    """Raise the exception for an error reply of the server; an unknown kind becomes :class:`SessionLost`.

    ``why_ended`` says why the previous server process ended, which the new process cannot know.
    """
    if refused.kind == "NoSession" and why_ended:
        raise faults.SessionLost(f"{url}: the server of this session has ended: {why_ended}")
    if refused.kind == "NotFound":
        raise faults.NotAvailable(f"{url}: there is no envweave-gym server at this path; correct it")
    kind = _KINDS.get(refused.kind)
    if kind is None:
        raise faults.SessionLost(f"{url}: {refused.kind}: {refused.message}")
    if refused.kind == "Unauthorized":  # the server asks for a header, but callers here set a token
        why = refused.message.partition(";")[0]
        todo = f'set {TOKEN} or token="file:PATH" to the token that the server was started with'
        raise faults.NotAvailable(f"{url}: {why}; {todo}")
    if refused.cause:
        raise crash(refused.cause, refused.message)
    at = f"{url}: " if refused.kind in _ABOUT_SERVERS else ""
    raise kind(at + refused.message)


_OF_MORE = (UnicodeError, BaseExceptionGroup)
"""Exception types whose constructors need more than a message."""


def crash(cause: str, message: str) -> faults.EnvironmentCrashed:
    """Return an ``EnvironmentCrashed`` for an exception of type ``cause`` in the environment on the server.

    If ``cause`` is a built-in exception, the result is an instance of that too, so that ``except ValueError``
    works as in this process.
    """
    error = _crash_type(cause)(message)
    error.cause = cause
    return error


@lru_cache(maxsize=64)
def _crash_type(cause: str) -> type[faults.EnvironmentCrashed]:
    base: Any = getattr(builtins, cause, None)
    if not (isinstance(base, type) and issubclass(base, Exception)) or issubclass(base, _OF_MORE):
        return faults.EnvironmentCrashed
    fields = {
        "__module__": __name__,
        "__str__": lambda error: error.args[0],  # str() of a KeyError would be the repr of its message
        "__reduce__": lambda error: (crash, (cause, error.args[0])),
    }
    return type(cause, (faults.EnvironmentCrashed, base), fields)


def hung_up(closed: ConnectionClosed, url: str) -> Exception:
    """Return the error for a WebSocket that the server has closed.

    It is a ``ConnectionError``, after which callers connect and send again. If the close frame says that
    the server would close the next connection too, it is another error, which callers raise.
    """
    if closed.code == TOO_BIG:
        return faults.InvalidArgument(f"{url}: {closed.reason or 'the frame is larger than it takes'}")
    kind = faults.NotAvailable if closed.code in _UNWELCOME else ConnectionError
    return kind(f"{url} has hung up: {closed}")


def untrusted(url: str, error: ssl.SSLCertVerificationError) -> Exception:
    """Return the error for an untrusted TLS certificate; not an ``OSError``, because a retry would fail too."""
    return faults.NotAvailable(
        f"{url} is not trusted: {error.verify_message}; REQUESTS_CA_BUNDLE names the certificates to trust"
    )


def raise_foreign(status: int, body: bytes, url: str) -> NoReturn:
    """Raise the error for an HTTP response that has no frame; the server or a proxy may have sent it."""
    refused = refusal_in(body)
    if refused is not None:
        raise_refused(refused, url)
    if status == _TOO_LARGE:
        raise faults.InvalidArgument(f"{url}: the frame is larger than what stands before the server takes")
    if status in GATEWAY_ERRORS:
        raise ConnectionError(f"{url} is not reached: HTTP {status}")
    raise NotAServer(f"{url} is no envweave-gym server: HTTP {status}")


def refusal_in(body: bytes | None) -> Refused | None:
    """Return the error reply in an HTTP body; ``None`` if it is not from an envweave-gym server."""
    try:
        given = msgspec.json.decode(body or b"", type=_Error)
    except msgspec.MsgspecError:
        return None
    return Refused(-1, given.error, given.message)


class _Error(msgspec.Struct):
    error: str
    message: str
