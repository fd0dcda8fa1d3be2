"""Access of views to the session service and the open WebSockets of their Flask application."""

from __future__ import annotations

from typing import cast

from flask import Flask, current_app

from envweave_gym_server.protocols.native.websocket import WebSockets
from envweave_gym_server.sessions.service import SessionService

_SERVICE, _WEBSOCKETS = "envweave", "envweave_websockets"


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
