"""Views that need no session: index, health, metrics, OpenAPI document, list of environments."""

from __future__ import annotations

from typing import Any

import msgspec
from flask import Blueprint, Response, current_app, request
from prometheus_client import CONTENT_TYPE_LATEST

from envweave_gym.core.version import __version__
from envweave_gym.wire.messages import Create
from envweave_gym_server.offers.offers import Offer
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.rest import schemas
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.protocols.rest.openapi import document, operation
from envweave_gym_server.protocols.rest.prometheus import exposition
from envweave_gym_server.protocols.rest.schemas import json_response, read_arrays

about = Blueprint("about", __name__)


@about.get("/")
@operation(schemas.Index)
def index() -> Response:
    """Return name, version and paths of the API."""
    return json_response(schemas.Index("envweave-gym", __version__, "/v1/envs", "/openapi.json", "/metrics"))


@about.get("/health")
@operation(schemas.Health, refuses=(503,))
def health() -> Response:
    """Return whether the server takes calls; needs no token."""
    stopping = service().sessions.stopped
    return json_response(schemas.Health("stopping" if stopping else "healthy"), 503 if stopping else 200)


@about.get("/metrics")
@operation("text/plain")
def metrics() -> Response:
    """Return the metrics of the server, for Prometheus."""
    return Response(exposition(service().metrics), content_type=CONTENT_TYPE_LATEST)


@about.get("/openapi.json")
@operation(dict[str, Any])
def openapi() -> Response:
    """Return the OpenAPI document of this API."""
    return json_response(document(current_app))


@about.get("/v1/envs")
@operation(schemas.Environments)
def list_environments() -> Response:
    """List all environments that are served."""
    return json_response(schemas.Environments([_environment(offer) for offer in service().offers.values()]))


def _environment(offer: Offer) -> schemas.Environment:
    return schemas.Environment(offer.name, offer.doc, list(offer.apis), list(offer.kwargs))


@about.get("/v1/envs/<path:env_id>")
@operation(schemas.Description, query=("api", "arrays"), refuses=(404, 422, 503))
def describe_environment(env_id: str) -> Response:
    """Describe one environment, made with its default arguments or, if those need data, with its trial arguments."""
    arrays, server = read_arrays(), service()
    offer = server.offers.find(env_id)
    api = request.args.get("api", offer.apis[0])
    rows = {"num_envs": 1} if api == "vector" else {}
    known = server.description(Create(offer.name, api, {**offer.trial, **rows}))
    about = {"id": offer.name, "doc": offer.doc, "apis": offer.apis, "kwargs": offer.arguments_for(api)}
    return json_response(msgspec.convert({**plain(known, arrays), **about}, schemas.Description))
