"""Errors of the Tinker API: HTTP statuses that the SDK turns into exceptions of its own.

The SDK repeats a request for minutes after 408, 409, 429 and every 5xx. A request that can never succeed is
therefore refused with 400, 401, 403, 404 or 410, an exception of the server's own included.
"""

from __future__ import annotations

import logging
from typing import ClassVar

import msgspec
from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from envweave_gym.core.faults import EnvweaveError
from envweave_gym_server.core.errors import Forbidden
from envweave_gym_server.core.logs import trace_of

RETRY_AFTER_S = 1
_EXPECTED = {"/api/v1/retrieve_future": (408, 410), "/api/v1/session_heartbeat": (410,)}
"""Statuses that are part of the protocol and not logged, by path."""
_log = logging.getLogger(__name__)


class ApiError(EnvweaveError):
    """A refusal with the HTTP status of its class."""

    status: ClassVar[int] = 400


class BadInput(ApiError):
    """Error for a request that can never succeed; the SDK raises ``BadRequestError``."""


class WrongKey(ApiError):
    """Error for a missing or wrong API key; the SDK raises ``AuthenticationError``."""

    status = 401


class NotFound(ApiError):
    """Error for a model, sampler, session or checkpoint that does not exist; the SDK raises ``NotFoundError``."""

    status = 404


class Gone(ApiError):
    """Error for a future or a session that no longer exists; the SDK submits a sample again."""

    status = 410


class Busy(ApiError):
    """Error for a request over a limit; the SDK waits and repeats it."""

    status = 429


def handle_errors(app: Flask) -> None:
    """Turn exceptions of views into JSON replies, and write one log line for each failed request."""

    @app.errorhandler(ApiError)
    def refuse(error: ApiError) -> Response:
        return _reply(error.status, str(error))

    @app.errorhandler(Forbidden)
    def forbid(error: Forbidden) -> Response:
        return _reply(403, str(error))

    @app.errorhandler(msgspec.ValidationError)
    @app.errorhandler(msgspec.DecodeError)
    def misread(error: Exception) -> Response:
        return _reply(400, f"the body of {request.path} is not what this server reads: {error}")

    @app.errorhandler(HTTPException)
    def pass_on(error: HTTPException) -> Response:
        missing = f"this server has no {request.method} {request.path}"
        if error.code == 413:  # of a body without a length before it; the SDK repeats no 400
            return _reply(
                400, f"the body of {request.path} is too large; send fewer or shorter rows at a time"
            )
        return _reply(error.code or 400, missing if error.code in (404, 405) else str(error.description))

    @app.errorhandler(Exception)
    def fail(error: Exception) -> Response:
        _log.error("a view failed", extra={"path": request.path, **trace_of(error)})
        return _reply(400, f"the server failed at this request ({type(error).__name__}); its log says where")


def _reply(status: int, detail: str) -> Response:
    """Return the JSON reply of an error; with 429 it says when to try again."""
    if status not in _EXPECTED.get(request.path, ()):
        _log.warning("refused", extra={"path": request.path, "status": status, "detail": detail})
    response = jsonify(detail=detail)
    response.status_code = status
    if status == Busy.status:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    return response
