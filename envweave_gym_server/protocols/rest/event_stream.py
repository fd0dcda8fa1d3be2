"""The calls of a session as server-sent events.

Each call that is done is one event: its id is the number of the call, its data the reply. A client that was
cut off resumes with ``Last-Event-ID`` or ``?since=``. The server retains the last replies only; if some are
gone, an event ``gap`` says how many.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain

import msgspec
from flask import Blueprint, Response, request

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.wire.messages import Began, Refused, Reply, Stepped, read_reply
from envweave_gym_server.protocols.current_app import service
from envweave_gym_server.protocols.rest.json_values import Arrays
from envweave_gym_server.protocols.rest.openapi import operation
from envweave_gym_server.protocols.rest.replies import lost, played
from envweave_gym_server.protocols.rest.schemas import read_arrays
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Session

events = Blueprint("events", __name__)

KEEPALIVE_S = 15.0
"""Interval of comments on a quiet stream, which detect a listener that has left."""


@events.get("/v1/sessions/<session_id>/events")
@operation("text/event-stream", query=("since", "follow", "arrays"), refuses=(404, 422, 503))
def listen(session_id: str) -> Response:
    """Send the calls of a session as server-sent events; with ``?follow=false`` only those already done."""
    server, arrays = service(), read_arrays()
    session, since, follow = server.sessions.get(session_id), _since(), _follow()
    stream = _events(server, session, since, arrays, follow)
    first = next(stream)  # raises refusals while the response still has no status
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = Response(chain([first], stream), content_type="text/event-stream", headers=headers)
    response.call_on_close(stream.close)
    return response


def _since() -> int:
    given = request.args.get("since", request.headers.get("Last-Event-ID", "0"))
    if not given.isdecimal() or len(given) > 18:
        raise InvalidArgument(f"since={shown(given)} is not the number of a call")
    return int(given)


def _follow() -> bool:
    given = request.args.get("follow", "true")
    if given not in ("true", "false"):
        raise InvalidArgument(f"follow={shown(given)} is neither 'true' nor 'false'")
    return given == "true"


def _events(
    server: SessionService, session: Session, since: int, arrays: Arrays, follow: bool
) -> Generator[str]:
    log = session.replies
    with server.listeners.one(), log.listener() as more:
        yield ": listening\n\n"
        while True:
            more.clear()
            over = log.closed or server.sessions.stopped
            for number, frame in log.since(since):
                if number > since + 1:
                    yield f'event: gap\ndata: {{"missed":{number - since - 1}}}\n\n'
                yield _event(number, read_reply(frame), arrays)
                since = number
            if over:
                yield "event: closed\ndata: {}\n\n"
            if over or not follow:
                return
            if not more.wait(KEEPALIVE_S):
                yield ": alive\n\n"


def _event(number: int, reply: Reply, arrays: Arrays) -> str:
    if isinstance(reply, Began | Stepped):
        kind, data = ("reset" if isinstance(reply, Began) else "step"), played(reply, arrays)
    else:
        kind, data = "lost", lost(reply) if isinstance(reply, Refused) else None
    return f"id: {number}\nevent: {kind}\ndata: {msgspec.json.encode(data).decode()}\n\n"
