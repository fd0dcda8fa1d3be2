"""Views of the environments that the server offers: the list, and the description of each."""

from __future__ import annotations

import msgspec
from flask import Blueprint, Response, request

from envweave_gym.wire.messages import Create
from envweave_gym_server.offers.offers import Offer
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.rest import bodies
from envweave_gym_server.protocols.rest.bodies import json_response, read_arrays
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.protocols.rest.openapi import operation

offers = Blueprint("offers", __name__)


@offers.get("/v1/envs")
@operation(bodies.Environments)
def list_environments() -> Response:
    """All environments that are served."""
    return json_response(bodies.Environments([_environment(offer) for offer in service().offers.values()]))


def _environment(offer: Offer) -> bodies.Environment:
    return bodies.Environment(offer.name, offer.doc, list(offer.apis), list(offer.kwargs))


@offers.get("/v1/envs/<path:env_id>")
@operation(bodies.Description, query=("api", "arrays"), refuses=(404, 422, 503))
def describe_environment(env_id: str) -> Response:
    """Describe one, made with its default arguments or, if those need data, with its trial arguments."""
    arrays, server = read_arrays(), service()
    offer = server.offers.find(env_id)
    api = request.args.get("api", offer.apis[0])
    rows = {"num_envs": 1} if api == "vector" else {}
    known = server.description(Create(offer.name, api, {**offer.trial, **rows}))
    about = {"id": offer.name, "doc": offer.doc, "apis": offer.apis, "kwargs": offer.taken(api)}
    return json_response(msgspec.convert({**plain(known, arrays), **about}, bodies.Description))
