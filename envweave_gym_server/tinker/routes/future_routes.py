"""Paths of results: the long poll of a future, and its end."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from envweave_gym_server.tinker.request_bodies import FutureId, body_of
from envweave_gym_server.tinker.tinker_service import the_service

future_routes = Blueprint("future_routes", __name__)
LONGEST_POLL_S = 30.0
"""The SDK's own limit of such a request is 45 s."""


@future_routes.post("/retrieve_future")
def retrieve() -> Response:
    """Return a result; if it takes longer, status 408, at which the SDK asks again at once."""
    request_id = body_of(FutureId).request_id
    reply = the_service().futures.wait(request_id, LONGEST_POLL_S)
    if reply is None:
        response = jsonify(type="try_again", request_id=request_id, queue_state="active")
        response.status_code = 408
        return response
    return Response(reply.body, mimetype=reply.mimetype)


@future_routes.post("/cancel_future")
def cancel() -> tuple[str, int]:
    """Do not run an operation that still waits."""
    the_service().futures.cancel(body_of(FutureId).request_id)
    return "", 204
