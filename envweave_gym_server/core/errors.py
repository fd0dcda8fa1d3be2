"""Exceptions of the server, the HTTP status of each, and their conversion to error replies."""

from __future__ import annotations

import errno

from envweave_gym.core.faults import (
    AtCapacity,
    EnvironmentCrashed,
    EnvweaveError,
    InvalidAction,
    InvalidArgument,
    NotAvailable,
    ResetNeeded,
    UnknownEnvironment,
)
from envweave_gym.wire.messages import NUMBERLESS, Refused


class BadRequest(EnvweaveError):
    """Error if the server cannot read the body or the message of a request; status 400."""


class Unauthorized(EnvweaveError):
    """Error if the token is missing or wrong; status 401."""


class Forbidden(EnvweaveError):
    """Error if the ``Host`` or the ``Origin`` of the request is not allowed; status 403."""


class NoSession(EnvweaveError):
    """Error if no session has this id: it was never created, was closed, or its lease expired; status 404."""


class ClientLeft(EnvweaveError):
    """Error if the client disconnected while its call waited; the call was not executed."""


_STATUS: dict[type[BaseException], int] = {
    BadRequest: 400,
    InvalidAction: 422,
    InvalidArgument: 422,
    Unauthorized: 401,
    Forbidden: 403,
    NoSession: 404,
    ClientLeft: 408,
    UnknownEnvironment: 404,
    ResetNeeded: 409,
    EnvironmentCrashed: 422,
    NotAvailable: 422,
    RecursionError: 422,
    AtCapacity: 503,
}
STATUS_OF_KIND = {
    **{kind.__name__: status for kind, status in _STATUS.items()},
    "Conflict": 409,
    "ValueError": 422,
    "EnvironmentCrashed": 200,
    "FaultStorm": 200,
}
"""HTTP status for each ``kind`` of a :class:`Refused`; crashes have 200, because the call was executed."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EAGAIN, errno.EDQUOT)


def is_exhaustion(error: BaseException) -> bool:
    """Return whether an exception means that the machine has run out of files, disk, memory or threads."""
    if isinstance(error, OSError):
        return error.errno in _EXHAUSTED
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def status_of(error: BaseException) -> int:
    """Return the HTTP status for an exception; 500 for exceptions that are bugs of the server."""
    known = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    return 503 if known == 500 and is_exhaustion(error) else known


def refusal_of(error: BaseException, number: int = NUMBERLESS) -> Refused:
    """Convert an exception to the error reply to the call with this number."""
    status = status_of(error)
    if status == 500:
        return Refused(number, "ServerError", "the server failed; its log says how")
    if status == 503 and not isinstance(error, AtCapacity):
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        return Refused(
            number, "AtCapacity", f"the machine is used up ({reason}); close sessions or come again"
        )
    if isinstance(error, RecursionError):  # in code of ours: environments crash by themselves
        return Refused(number, "InvalidArgument", "what was sent nests too deep for this server")
    cause = error.cause if isinstance(error, EnvironmentCrashed) else ""
    message = " ".join(str(error).split())
    return Refused(number, type(error).__name__, message, cause=cause)
