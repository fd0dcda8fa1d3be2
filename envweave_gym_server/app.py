"""The server as a Flask application."""

from __future__ import annotations

from typing import Any

from flask import Flask

from envweave_gym_server.auth import protect
from envweave_gym_server.errors import tell_errors
from envweave_gym_server.faces.frames import frames
from envweave_gym_server.offers import offers_of
from envweave_gym_server.settings import Settings
from envweave_gym_server.state import ServerState


def create_app(*what: Any, settings: Settings | None = None, **options: Any) -> Flask:
    """A server of ``what``: IDs, environment classes or factories; all IDs we know where none is named.

    ``options`` are the fields of :class:`Settings`. Without a ``token`` it lets everybody in: give one unless
    only you can reach it. ::

        app = create_app(CounterEnv, token="secret")
    """
    settings = Settings(**options) if settings is None else settings
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = settings.largest_frame
    app.extensions["envweave"] = ServerState(offers_of(what), settings)
    protect(app, settings)
    tell_errors(app)
    app.register_blueprint(frames)
    return app
