"""Every error as one sentence: the status of HTTP for an exception, and the message that tells of it."""

from __future__ import annotations

import errno
import logging
from typing import Any

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

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
from envweave_gym.wire.framing import CONTENT_TYPE
from envweave_gym.wire.messages import NUMBERLESS, Refused, encode
from envweave_gym_server.app.auth import Forbidden, Unauthorized
from envweave_gym_server.app.logs import trace_of
from envweave_gym_server.sessions.session import ClientLeft, NoSession


class BadRequest(EnvweaveError):
    """The body is not what the server reads."""


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
"""The status for the ``kind`` of a :class:`Refused`; that an environment crashed is a result."""


_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EAGAIN, errno.EDQUOT)
_log = logging.getLogger(__name__)


def is_exhaustion(error: BaseException) -> bool:
    """Whether the machine has run out of something: files, disk, memory, threads."""
    if isinstance(error, OSError):
        return error.errno in _USED_UP
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def status_of(error: BaseException) -> int:
    """The status of HTTP that tells of an exception."""
    known = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    return 503 if known == 500 and is_exhaustion(error) else known


def refusal_of(error: BaseException, number: int = NUMBERLESS) -> Refused:
    """An exception as the reply to the call with this number."""
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
    return Refused(number, type(error).__name__, _one_line(error), cause=cause)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def tell_errors(app: Flask) -> None:
    """Answer every exception in the form that was asked in, and never with a traceback."""

    @app.errorhandler(HTTPException)
    def told_by_werkzeug(error: HTTPException) -> Response:
        line = (error.description or error.name).splitlines()[0]
        response = reply_with(Refused(-1, error.name.replace(" ", ""), line), error.code or 500)
        if isinstance(error, MethodNotAllowed):
            response.headers["Allow"] = ", ".join(error.valid_methods or ())
        return response

    @app.errorhandler(Exception)
    def told(error: Exception) -> Response:
        status = status_of(error)
        if status == 500:
            _log.error("request failed", extra={**_request(), **trace_of(error)})
        return reply_with(refusal_of(error), status)


def _request() -> dict[str, Any]:
    """What may be logged of a request: no headers, no query, no body."""
    return {"method": request.method, "path": request.path[:200], "client": request.remote_addr}


def reply_with(refused: Refused, status: int) -> Response:
    """A refusal as a response."""
    if status >= 400:
        _log.info("request refused", extra={**_request(), "status": status, "error": refused.kind})
    if request.mimetype == CONTENT_TYPE:
        return Response(encode(refused), status, content_type=CONTENT_TYPE)
    told: dict[str, Any] = {"error": refused.kind, "message": refused.message}
    if refused.committed >= 0:
        told["committed"] = refused.committed
    response = Response(msgspec.json.encode(told), status, content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = "1"
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
