"""Views of sessions over plain HTTP and JSON, so that ``curl`` can play an episode."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from hashlib import blake2b
from typing import cast

import numpy as np
from flask import Blueprint, Response

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.wire.messages import (
    Began,
    Create,
    Refused,
    Reply,
    Reset,
    Step,
    Stepped,
    encode,
    pack,
    read_reply,
)
from envweave_gym_server.core.errors import STATUS_OF_KIND
from envweave_gym_server.environments.questions import DESCRIBE
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.rest import schemas
from envweave_gym_server.protocols.rest.actions import Actions
from envweave_gym_server.protocols.rest.error_replies import reply_with
from envweave_gym_server.protocols.rest.json_values import plain
from envweave_gym_server.protocols.rest.openapi import operation
from envweave_gym_server.protocols.rest.replies import (
    agents_of,
    ask,
    lost,
    played,
    requests_of,
    selection_of,
)
from envweave_gym_server.protocols.rest.schemas import client, json_response, read_arrays, read_body
from envweave_gym_server.sessions.session import Left, Session

sessions = Blueprint("sessions", __name__)

_PLAYED = (schemas.Played, schemas.Lost)
_REFUSES = (400, 404, 409, 413, 422, 503)


@sessions.post("/v1/sessions")
@operation(schemas.Opened, takes=schemas.NewSession, status=201, refuses=(400, 404, 409, 413, 422, 503))
def open_session() -> Response:
    """Make an environment."""
    body, _ = read_body(schemas.NewSession)
    server, create = service(), _create(body)
    session_id = uuid.uuid4().hex if body.session is None else body.session
    frame = encode(Create(create.env_id, create.api, pack(create.kwargs)))
    session, reply = server.sessions.create(session_id, create, frame, client())
    given = read_reply(reply)
    if isinstance(given, Refused):
        return _refuse(given)
    return json_response(schemas.Opened(session_id, session.env_id, create.api, session.core.committed), 201)  # pyright: ignore[reportArgumentType]


def _create(body: schemas.NewSession) -> Create:
    offer = service().offers.find(body.id)
    kwargs = dict(body.kwargs)
    given = {"num_envs": body.num_envs, "autoreset_mode": body.autoreset_mode}
    for name, value in given.items():
        if value is not None and kwargs.setdefault(name, value) != value:
            both = f"{name}={shown(value)} and kwargs with {name}={shown(kwargs[name])}"
            raise InvalidArgument(f"{offer.name}: {both} contradict each other; give one of them")
    api = body.api or ("vector" if "num_envs" in kwargs else offer.apis[0])
    if api == "gym" and body.api is None and "parallel" in offer.apis:  # a factory that does not say
        api = service().description(Create(offer.name, "", kwargs))["api"]
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

    def build(number: int) -> tuple[Reset, bytes]:
        frame = encode(Reset(number, pack(body.seed), pack(options)))
        return Reset(number, body.seed, options), frame

    return _play(session_id, body.call, build)


@sessions.post("/v1/sessions/<session_id>/step")
@operation(_PLAYED, takes=schemas.StepCall, query=("arrays",), refuses=_REFUSES)
def step(session_id: str) -> Response:
    """Act once."""
    body, data = read_body(schemas.StepCall)
    session, digest, left = service().sessions.get(session_id), blake2b(data).digest(), client()
    actions = _actions(session, left)

    def build(number: int) -> tuple[Step, bytes]:
        """Build the same frame for the same body, even if it is another agent's turn by now."""
        known, built = session.notes.get("step", (None, None))
        if known != (number, digest) or built is None:
            action = actions.read(body.action, selection_of(read_reply(session.core.last_reply)))
            built = Step(number, action), encode(Step(number, pack(action)))
            session.notes["step"] = (number, digest), built
        return built

    return _play(session_id, body.call, build)


def _actions(session: Session, left: Left) -> Actions:
    """Return the parser for actions of a session, built from its environment's description and cached."""
    actions: Actions | None = session.notes.get("actions")
    if actions is None:
        name = service().offers.find(session.env_id).name
        described = ask(session, left, DESCRIBE)
        if described is None:
            raise NotAvailable(f"{name} does not say what its actions are; reset it, or create another")
        rows = session.create.kwargs.get("num_envs", 1)
        actions = session.notes["actions"] = Actions(name, described, rows)
    return actions


def _play(
    session_id: str, number: int | None, build: Callable[[int], tuple[Reset | Step, bytes]]
) -> Response:
    arrays, session, left = read_arrays(), service().sessions.get(session_id), client()
    frame = session.call_next(build, left) if number is None else session.call(*build(number), left)
    reply = read_reply(frame)
    if not isinstance(reply, Began | Stepped):
        return _refuse(reply)
    return json_response(played(reply, arrays))


def _refuse(reply: Reply) -> Response:
    refused = cast("Refused", reply)
    fault = lost(refused)
    return json_response(fault) if fault else reply_with(refused, STATUS_OF_KIND.get(refused.kind, 422))


@sessions.get("/v1/sessions/<session_id>")
@operation(schemas.Session, refuses=(404, 503))
def look(session_id: str) -> Response:
    """Return the state of a session."""
    session, left = service().sessions.get(session_id), client()
    busy = session.busy
    requests = requests_of(session)
    return json_response(
        schemas.Session(
            session=session.id,
            id=session.env_id,
            api=session.api,
            call=session.core.committed,
            busy=busy,
            attached=session.attached,
            idle=session.idle_s(),
            agents=agents_of(requests),
            requests=requests,
            state=None if busy else plain(ask(session, left, "state")),
        )
    )


@sessions.delete("/v1/sessions/<session_id>")
@operation(None, status=204, refuses=(404, 503))
def close(session_id: str) -> Response:
    """Close an environment."""
    service().sessions.close(session_id)
    return Response(status=204)
