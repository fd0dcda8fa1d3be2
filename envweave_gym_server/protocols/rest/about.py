"""Views about the server itself: index, health, metrics and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, current_app
from prometheus_client import CONTENT_TYPE_LATEST

from envweave_gym.core.version import __version__
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.rest import bodies
from envweave_gym_server.protocols.rest.bodies import json_response
from envweave_gym_server.protocols.rest.openapi import document, operation
from envweave_gym_server.protocols.rest.prometheus import exposition

about = Blueprint("about", __name__)


@about.get("/")
@operation(bodies.Index)
def index() -> Response:
    """Name, version and the paths of the API."""
    return json_response(bodies.Index("envweave-gym", __version__, "/v1/envs", "/openapi.json", "/metrics"))


@about.get("/health")
@operation(bodies.Health, refuses=(503,))
def health() -> Response:
    """Whether the server takes calls; it needs no token."""
    stopping = service().sessions.stopped
    return json_response(bodies.Health("stopping" if stopping else "healthy"), 503 if stopping else 200)


@about.get("/metrics")
@operation("text/plain")
def metrics() -> Response:
    """The metrics of the server, for Prometheus."""
    return Response(exposition(service().metrics), content_type=CONTENT_TYPE_LATEST)


@about.get("/openapi.json")
@operation(dict[str, Any])
def openapi() -> Response:
    """The OpenAPI document of this API."""
    return json_response(document(current_app))
