"""Views of sessions over plain HTTP and JSON, so that ``curl`` can play an episode."""

from __future__ import annotations

import uuid
from hashlib import blake2b

import numpy as np
from flask import Blueprint, Response

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.wire.messages import Create, Reset, Step
from envweave_gym_server.core.errors import STATUS_OF_KIND
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.json_calls import (
    Build,
    CallRefused,
    action_from_json,
    api_of,
    create_session,
    execute,
    peek,
    reset_call,
    step_call,
)
from envweave_gym_server.protocols.rest import schemas
from envweave_gym_server.protocols.rest.error_replies import reply_with
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.protocols.rest.openapi import operation
from envweave_gym_server.protocols.rest.replies import agents_of, lost, played, requests_of
from envweave_gym_server.protocols.rest.schemas import client, json_response, read_arrays, read_body
from envweave_gym_server.sessions.session import Session

sessions = Blueprint("sessions", __name__)

_PLAYED = (schemas.Played, schemas.Lost)
_REFUSES = (400, 404, 409, 413, 422, 503)
_LAST_STEP = "json_step"
"""Key in ``Session.notes`` of the last step: its number and a digest of its body, and its message and frame."""


@sessions.errorhandler(CallRefused)
def _refused(error: CallRefused) -> Response:
    refused = error.refused
    fault = lost(refused)
    return json_response(fault) if fault else reply_with(refused, STATUS_OF_KIND.get(refused.kind, 422))


@sessions.post("/v1/sessions")
@operation(schemas.Opened, takes=schemas.NewSession, status=201, refuses=(400, 404, 409, 413, 422, 503))
def open_session() -> Response:
    """Make an environment."""
    body, _ = read_body(schemas.NewSession)
    create = _create(body)
    session_id = uuid.uuid4().hex if body.session is None else body.session
    session = create_session(service(), session_id, create, client())
    return json_response(schemas.Opened(session_id, session.env_id, create.api, session.core.committed), 201)  # pyright: ignore[reportArgumentType]


def _create(body: schemas.NewSession) -> Create:
    offer = service().offers.find(body.id)
    kwargs = dict(body.kwargs)
    given = {"num_envs": body.num_envs, "autoreset_mode": body.autoreset_mode}
    for name, value in given.items():
        if value is not None and kwargs.setdefault(name, value) != value:
            both = f"{name}={shown(value)} and kwargs with {name}={shown(kwargs[name])}"
            raise InvalidArgument(f"{offer.name}: {both} contradict each other; give one of them")
    api = body.api or ("vector" if "num_envs" in kwargs else api_of(service(), offer.name, kwargs))
    if api == "vector":
        kwargs.setdefault("num_envs", 1)
    if api in ("gym", "vector"):
        kwargs.setdefault("on_fault", "truncate")
    return Create(offer.name, api, kwargs)


@sessions.post("/v1/sessions/<session_id>/reset")
@operation(_PLAYED, takes=schemas.ResetCall, query=("arrays",), refuses=_REFUSES)
def reset(session_id: str) -> Response:
    """Start an episode."""
    body, _ = read_body(schemas.ResetCall)
    options, mask = body.options, (body.options or {}).get("reset_mask")
    if options and isinstance(mask, list) and all(type(one) is bool for one in mask):
        options["reset_mask"] = np.array(mask, dtype=np.bool_)
    return _play(service().sessions.get(session_id), body.call, reset_call(body.seed, options))


@sessions.post("/v1/sessions/<session_id>/step")
@operation(_PLAYED, takes=schemas.StepCall, query=("arrays",), refuses=_REFUSES)
def step(session_id: str) -> Response:
    """Act once."""
    body, data = read_body(schemas.StepCall)
    session, digest = service().sessions.get(session_id), blake2b(data).digest()
    build_anew = step_call(action_from_json(session, body.action, client()))

    def build(number: int) -> tuple[Reset | Step, bytes]:
        """Build the same frame for the same body, even if it is another agent's turn by now."""
        known, built = session.notes.get(_LAST_STEP, (None, None))
        if known != (number, digest) or built is None:
            built = build_anew(number)
            session.notes[_LAST_STEP] = (number, digest), built
        return built

    return _play(session, body.call, build)


def _play(session: Session, number: int | None, build: Build) -> Response:
    arrays = read_arrays()
    return json_response(played(execute(session, build, client(), number), arrays))


@sessions.get("/v1/sessions/<session_id>")
@operation(schemas.Session, refuses=(404, 503))
def look(session_id: str) -> Response:
    """Return the state of a session."""
    session, left = service().sessions.get(session_id), client()
    busy = session.busy
    state, snapshot = (None, session.snapshot) if busy else peek(session, left, "state")
    requests = requests_of(snapshot)
    return json_response(
        schemas.Session(
            session=session.id,
            id=session.env_id,
            api=session.api,
            call=snapshot.call,
            busy=busy,
            attached=session.attached,
            idle=session.idle_s(),
            agents=agents_of(requests),
            requests=requests,
            state=plain(state),
        )
    )


@sessions.delete("/v1/sessions/<session_id>")
@operation(None, status=204, refuses=(404, 503))
def close(session_id: str) -> Response:
    """Close an environment."""
    service().sessions.close(session_id)
    return Response(status=204)
