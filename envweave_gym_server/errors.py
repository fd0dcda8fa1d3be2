"""Every error as one sentence: the status of HTTP for an exception, and the message that tells of it."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from envweave_gym.faults import (
    AtCapacity,
    EnvweaveError,
    InvalidAction,
    InvalidArgument,
    NotAvailable,
    ResetNeeded,
    UnknownEnvironment,
)
from envweave_gym.wire.messages import NUMBERLESS, Refused, encode
from envweave_gym_server.auth import Forbidden, Unauthorized
from envweave_gym_server.sessions import NoSession

FRAMES = "application/msgpack"
"""The content type of frames in HTTP bodies."""


class BadRequest(EnvweaveError):
    """The body is not what the server reads."""


_STATUS: dict[type[BaseException], int] = {
    BadRequest: 400,
    InvalidAction: 422,
    InvalidArgument: 422,
    Unauthorized: 401,
    Forbidden: 403,
    NoSession: 404,
    UnknownEnvironment: 404,
    ResetNeeded: 409,
    AtCapacity: 503,
    NotAvailable: 501,
}
STATUS_OF_KIND = {
    **{kind.__name__: status for kind, status in _STATUS.items()},
    "Conflict": 409,
    "ValueError": 422,
    "EnvironmentCrashed": 200,
    "FaultStorm": 200,
}
"""The status for the ``kind`` of a :class:`Refused`; that an environment crashed is a result."""


def status_of(error: BaseException) -> int:
    """The status of HTTP that tells of an exception."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def refusal_of(error: BaseException, number: int = NUMBERLESS) -> Refused:
    """An exception as the reply to the call with this number."""
    if status_of(error) == 500:
        return Refused(number, "ServerError", "the server failed; its log says how")
    return Refused(number, type(error).__name__, str(error))


def tell_errors(app: Flask) -> None:
    """Answer every exception in the form that was asked in, and never with a traceback."""

    @app.errorhandler(HTTPException)
    def told_by_werkzeug(error: HTTPException) -> Response:
        line = (error.description or error.name).splitlines()[0]
        return reply_with(Refused(-1, error.name.replace(" ", ""), line), error.code or 500)

    @app.errorhandler(Exception)
    def told(error: Exception) -> Response:
        status = status_of(error)
        if status == 500:
            app.logger.exception("%s %s failed", request.method, request.path)
        return reply_with(refusal_of(error), status)


def reply_with(refused: Refused, status: int) -> Response:
    """A refusal as a response."""
    if request.mimetype == FRAMES:
        return Response(encode(refused), status, content_type=FRAMES)
    told: dict[str, Any] = {"error": refused.kind, "message": refused.message}
    if refused.committed >= 0:
        told["committed"] = refused.committed
    response = Response(msgspec.json.encode(told), status, content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = "1"
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
