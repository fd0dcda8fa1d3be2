"""The server as a Flask application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from flask import Flask, Response, request

from envweave_gym.core.faults import AtCapacity
from envweave_gym_server.app.auth import protect
from envweave_gym_server.app.errors import tell_errors
from envweave_gym_server.app.settings import Settings
from envweave_gym_server.app.state import ServerState
from envweave_gym_server.offers.offers import offers_of
from envweave_gym_server.protocols.native.frames import frames
from envweave_gym_server.protocols.rest.about import about
from envweave_gym_server.protocols.rest.event_stream import events
from envweave_gym_server.protocols.rest.offer_views import offers as offers_face
from envweave_gym_server.protocols.rest.session_views import sessions

_MOST_LEFT = 32
"""So many connections beyond the limit may be of clients that have left: each keeps a thread."""


def create_app(
    *what: Any,
    settings: Settings | None = None,
    wire_kwargs: Mapping[str, Iterable[str]] | None = None,
    **options: Any,
) -> Flask:
    """A server of ``what``: IDs, environment classes or factories; all IDs we know where none is named.

    Or of one :class:`~envweave_gym_server.offers.offers.Offers`. ``wire_kwargs`` names, for IDs that are
    served, the arguments and reset options that clients may give beside those that the IDs name themselves.
    ``options``
    are the fields of :class:`Settings`. Without a ``token`` it lets everybody in: give one unless only you
    can reach it. ::

        app = create_app(CounterEnv, token="a-long-secret")
    """
    settings = Settings(**options) if settings is None else settings
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = settings.largest_frame
    offers = copy(offers_of(what))  # what is allowed here is not allowed on other servers of the same
    offers.allow(wire_kwargs or {})
    app.extensions["envweave"] = ServerState(offers, settings)
    protect(app, settings)
    tell_errors(app)
    _limit_connections(app, 2 * settings.max_sessions)
    _count_errors(app)
    for face in (about, offers_face, sessions, events, frames):
        app.register_blueprint(face)
    return app


def _limit_connections(app: Flask, most: int) -> None:
    """Keep threads free for what is no WebSocket; a session has two while it changes from one to another.

    A client that asks again for a slow step has left the connections over which it asked before: those do not
    count.
    """
    watch = app.extensions["envweave"].watch

    @app.before_request
    def check() -> None:
        if request.headers.get("Upgrade", "").lower() != "websocket" or len(watch) < most:
            return
        if len(watch) >= most + _MOST_LEFT or watch.present >= most:
            raise AtCapacity(f"{most} of {most} connections are open; close one or come again")


def _count_errors(app: Flask) -> None:
    metrics = app.extensions["envweave"].metrics

    @app.after_request
    def count(response: Response) -> Response:
        if response.status_code >= 400:
            metrics.answered(response.status_code)
        return response
