"""Access of views to the session service and the open WebSockets of their Flask application."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from flask import Flask, current_app, request

from envweave_gym_server.protocols.native.websocket import WebSockets
from envweave_gym_server.sessions.service import SessionService

_SERVICE, _WEBSOCKETS, _TOKENS = "envweave", "envweave_websockets", "envweave_tokens"

TokenCheck = Callable[[], bool]
"""Function that returns whether the current request has a token that its own view accepts."""


def attach_service(app: Flask, service: SessionService) -> WebSockets:
    """Make ``service`` available to the views of ``app``; return the set of its WebSockets, which are stopped first."""
    websockets = WebSockets()
    app.extensions[_SERVICE], app.extensions[_WEBSOCKETS] = service, websockets
    service.before_stop.append(websockets.stop)
    service.metrics.watch("envweave_connections", "WebSockets that are open.", lambda: len(websockets))
    return websockets


def service_of(app: Flask) -> SessionService:
    """Return the session service of an application."""
    return cast("SessionService", app.extensions[_SERVICE])


def service() -> SessionService:
    """Return the session service of the current request's application."""
    return service_of(current_app)


def websockets() -> WebSockets:
    """Return the open WebSockets of the current request's application."""
    return cast("WebSockets", current_app.extensions[_WEBSOCKETS])


def accept_tokens(app: Flask, blueprint: str, check: TokenCheck) -> None:
    """Accept requests to a blueprint's views also without the server's token, if ``check`` returns ``True``."""
    checks: dict[str, TokenCheck] = app.extensions.setdefault(_TOKENS, {})
    checks[blueprint] = check


def has_token_of_blueprint() -> bool:
    """Return whether the blueprint of the current request accepts its token."""
    checks: dict[str, TokenCheck] = current_app.extensions.get(_TOKENS, {})
    check = checks.get(request.blueprint or "")
    return check is not None and check()
