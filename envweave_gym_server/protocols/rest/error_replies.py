"""HTTP error responses: one sentence in the encoding of the request, never a traceback."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from envweave_gym.wire.messages import CONTENT_TYPE, NUMBERLESS, Refused, encode
from envweave_gym_server.core.errors import refusal_of, status_of
from envweave_gym_server.core.logs import trace_of

_log = logging.getLogger(__name__)


def handle_errors(app: Flask) -> None:
    """Register handlers that answer every exception of ``app``."""

    @app.errorhandler(HTTPException)
    def of_werkzeug(error: HTTPException) -> Response:
        line = (error.description or error.name).splitlines()[0]
        response = reply_with(Refused(NUMBERLESS, error.name.replace(" ", ""), line), error.code or 500)
        if isinstance(error, MethodNotAllowed):
            response.headers["Allow"] = ", ".join(error.valid_methods or ())
        return response

    @app.errorhandler(Exception)
    def of_any(error: Exception) -> Response:
        status = status_of(error)
        if status == 500:
            _log.error("request failed", extra={**_request_fields(), **trace_of(error)})
        return reply_with(refusal_of(error), status)


def _request_fields() -> dict[str, Any]:
    """Return the fields of a request that may be logged: no headers, no query, no body."""
    return {"method": request.method, "path": request.path[:200], "client": request.remote_addr}


def reply_with(refused: Refused, status: int) -> Response:
    """Return an error reply as an HTTP response: a frame for clients that sent one, JSON for all others."""
    if status >= 400:
        _log.info("request refused", extra={**_request_fields(), "status": status, "error": refused.kind})
    if request.mimetype == CONTENT_TYPE:
        return Response(encode(refused), status, content_type=CONTENT_TYPE)
    body: dict[str, Any] = {"error": refused.kind, "message": refused.message}
    if refused.committed >= 0:
        body["committed"] = refused.committed
    response = Response(msgspec.json.encode(body), status, content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = "1"
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
