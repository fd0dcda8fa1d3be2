"""What a server refuses, as the exception that it would be in this process."""

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
"""The status of a response to a body that is too large."""
_UNWELCOME = (1003, 1008, 1010)
"""The codes of close frames after which another WebSocket would be closed too."""


class Strange(ConnectionError):
    """What answers is no server; it may be something before one, so that asking again may help."""


def raise_refused(refused: Refused, url: str, why_ended: str = "") -> NoReturn:
    """Raise what the server says; what only servers know of is an error of the server.

    ``why_ended`` is what the one before it ended of, which cannot know that itself.
    """
    if refused.kind == "NoSession" and why_ended:
        raise faults.SessionLost(f"{url}: the server of this session has ended: {why_ended}")
    if refused.kind == "NotFound":
        raise faults.NotAvailable(f"{url}: there is no envweave-gym server at this path; correct it")
    kind = _KINDS.get(refused.kind)
    if kind is None:
        raise faults.SessionLost(f"{url}: {refused.kind}: {refused.message}")
    if refused.kind == "Unauthorized":  # the server says which header it wants, and callers here give none
        why = refused.message.partition(";")[0]
        todo = f'set {TOKEN} or token="file:PATH" to the token that the server was started with'
        raise faults.NotAvailable(f"{url}: {why}; {todo}")
    if refused.cause:
        raise crash(refused.cause, refused.message)
    at = f"{url}: " if refused.kind in _ABOUT_SERVERS else ""
    raise kind(at + refused.message)


_OF_MORE = (UnicodeError, BaseExceptionGroup)
"""Exceptions that take more than a message."""


def crash(cause: str, message: str) -> faults.EnvironmentCrashed:
    """The exception of a constructor elsewhere; of the built-in type ``cause`` too, if there is one."""
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
        "__str__": lambda error: error.args[0],  # that of a KeyError is a repr
        "__reduce__": lambda error: (crash, (cause, error.args[0])),
    }
    return type(cause, (faults.EnvironmentCrashed, base), fields)


def hung_up(closed: ConnectionClosed, url: str) -> Exception:
    """The error for a WebSocket that the server has closed: a loss, unless it would close another too."""
    if closed.code == TOO_BIG:
        return faults.InvalidArgument(f"{url}: {closed.reason or 'the frame is larger than it takes'}")
    kind = faults.NotAvailable if closed.code in _UNWELCOME else ConnectionError
    return kind(f"{url} has hung up: {closed}")


def untrusted(url: str, error: ssl.SSLCertVerificationError) -> Exception:
    """That the certificate of a server is none to trust, which the next one will not be either."""
    return faults.NotAvailable(
        f"{url} is not trusted: {error.verify_message}; REQUESTS_CA_BUNDLE names the certificates to trust"
    )


def raise_foreign(status: int, body: bytes, url: str) -> NoReturn:
    """Raise what an answer means that is no frame: the words of a server, or of what stands before it."""
    refused = refusal_in(body)
    if refused is not None:
        raise_refused(refused, url)
    if status == _TOO_LARGE:
        raise faults.InvalidArgument(f"{url}: the frame is larger than what stands before the server takes")
    if status in GATEWAY_ERRORS:
        raise ConnectionError(f"{url} is not reached: HTTP {status}")
    raise Strange(f"{url} is no envweave-gym server: HTTP {status}")


def refusal_in(body: bytes | None) -> Refused | None:
    """What the server says in the body of an error, where that is one of its own."""
    try:
        given = msgspec.json.decode(body or b"", type=_Error)
    except msgspec.MsgspecError:
        return None
    return Refused(-1, given.error, given.message)


class _Error(msgspec.Struct):
    error: str
    message: str
