"""``create_app``, which builds the server as a Flask application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from flask import Flask, Response, request

from envweave_gym.core.faults import AtCapacity
from envweave_gym_server.app.auth import protect
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.offers.offers import offers_of
from envweave_gym_server.protocols.current_app import attach_service, service_of
from envweave_gym_server.protocols.native.frames import frames
from envweave_gym_server.protocols.native.websocket import WebSockets
from envweave_gym_server.protocols.rest.error_replies import handle_errors
from envweave_gym_server.protocols.rest.event_stream import events
from envweave_gym_server.protocols.rest.server_views import about
from envweave_gym_server.protocols.rest.session_views import sessions
from envweave_gym_server.sessions.service import SessionService

_LEFT_LIMIT = 32
"""Limit of connections beyond ``max_sessions`` whose clients have disconnected; each of these keeps a thread."""


def create_app(
    *what: Any,
    settings: Settings | None = None,
    wire_kwargs: Mapping[str, Iterable[str]] | None = None,
    **options: Any,
) -> Flask:
    """Return a Flask application that serves ``what``: IDs, environment classes or factories.

    Without arguments it serves all our IDs. ``what`` may also be a single
    :class:`~envweave_gym_server.offers.offers.Offers`. ``wire_kwargs`` maps IDs to names of arguments and reset
    options that clients may give, in addition to those that the environments themselves allow. ``options``
    are the fields of :class:`Settings`. Without a ``token`` everybody may use the server: set one unless only
    you can reach it. ::

        app = create_app(CounterEnv, token="a-long-secret")
    """
    settings = Settings(**options) if settings is None else settings
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = settings.largest_frame
    offers = copy(offers_of(what))  # what is allowed here is not allowed on other servers of the same
    offers.allow(wire_kwargs or {})
    service = SessionService(offers, settings)
    websockets = attach_service(app, service)
    protect(app, settings)
    handle_errors(app)
    _limit_connections(app, websockets, 2 * settings.max_sessions)
    _count_errors(app, service.metrics)
    for routes in (about, sessions, events, frames):
        app.register_blueprint(routes)
    _open_protocols(app, settings)
    return app


def _open_protocols(app: Flask, settings: Settings) -> None:
    """Add the routes of the protocols of others; their modules are imported only if they are served."""
    if settings.default:
        service_of(app).offers.find(settings.default)  # raises if it is not served
    answer_openenv = has_password = None
    if "openenv" in settings.protocols:
        from envweave_gym_server.protocols.openenv.http_routes import (
            answer_openenv,
            has_password,
            register_openenv,
        )

        register_openenv(app, has_mcp="mcp" in settings.protocols)
    if "mcp" in settings.protocols:
        from envweave_gym_server.protocols.mcp.mcp_routes import register_mcp

        register_mcp(app, answer_openenv, has_password)


def _limit_connections(app: Flask, websockets: WebSockets, most: int) -> None:
    """Refuse WebSockets beyond ``most``, so that threads stay free for other requests.

    A session has two WebSockets while its client reconnects. Connections whose clients have disconnected do not count,
    up to a limit of their own: a client that repeats a slow step leaves its earlier connection behind.
    """

    @app.before_request
    def check() -> None:
        if request.headers.get("Upgrade", "").lower() != "websocket" or len(websockets) < most:
            return
        if len(websockets) >= most + _LEFT_LIMIT or websockets.present >= most:
            raise AtCapacity(f"{most} of {most} connections are open; close one or come again")


def _count_errors(app: Flask, metrics: Metrics) -> None:
    @app.after_request
    def count(response: Response) -> Response:
        if response.status_code >= 400:
            metrics.answered(response.status_code)
        return response
