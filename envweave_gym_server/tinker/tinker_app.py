"""Flask application of the Tinker server, with the checks of every request: host, origin, key, SDK version."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from flask import Flask, request

from envweave_gym_server.app.auth import check_host, check_origin, host_name
from envweave_gym_server.tinker.api_errors import WrongKey, handle_errors
from envweave_gym_server.tinker.body_limits import MAX_BODY_BYTES, ByteBudget, limit_bodies
from envweave_gym_server.tinker.protobuf_bodies import LARGEST_BODY
from envweave_gym_server.tinker.routes.checkpoint_routes import checkpoint_routes
from envweave_gym_server.tinker.routes.client_routes import check_sdk_version, client_routes
from envweave_gym_server.tinker.routes.future_routes import future_routes
from envweave_gym_server.tinker.routes.sampling_routes import sampling_routes
from envweave_gym_server.tinker.routes.training_routes import training_routes
from envweave_gym_server.tinker.tinker_service import TinkerService

PREFIX = "/api/v1"
_OPEN = f"{PREFIX}/healthz"


def create_tinker_app(service: TinkerService, key: str, hosts: Sequence[str]) -> Flask:
    """Return the application that serves ``service`` to clients with the key, under these host names."""
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY
    app.json.sort_keys = False  # type: ignore[attr-defined] - of the default provider
    service.attach(app)
    handle_errors(app)
    _protect(app, key.encode(), {host_name(host) for host in hosts})
    limit_bodies(app, ByteBudget(MAX_BODY_BYTES))
    for routes in (client_routes, training_routes, sampling_routes, future_routes, checkpoint_routes):
        app.register_blueprint(routes, url_prefix=PREFIX)
    return app


def _protect(app: Flask, key: bytes, hosts: set[str]) -> None:
    @app.before_request
    def check() -> None:
        check_host(hosts)
        check_origin()
        if request.path == _OPEN:
            return
        given = request.headers.get("X-API-Key", "")
        if not given:
            raise WrongKey("the API key is missing; set TINKER_API_KEY to the key of this server")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), key):
            raise WrongKey(
                "the API key is wrong; set TINKER_API_KEY to the key that this server printed or was given"
            )
        check_sdk_version(
            request.headers.get("x-sdk-version") or request.headers.get("X-Stainless-Package-Version", "")
        )
