"""The frames of the step plane: over a WebSocket, or one in the body of a request where those are blocked."""

from __future__ import annotations

import time

from flask import Blueprint, Response, request

from envweave_gym.faults import NotAvailable, shown
from envweave_gym.wire.framing import CONTENT_TYPE
from envweave_gym.wire.messages import (
    NUMBERLESS,
    VERSION,
    Answer,
    Call,
    Create,
    encode,
    number_of,
    pack,
    read_call,
)
from envweave_gym_server.errors import BadRequest
from envweave_gym_server.faces.bodies import client, received
from envweave_gym_server.session import Left, Session
from envweave_gym_server.state import ServerState, state
from envweave_gym_server.stream import Connection, Taken

frames = Blueprint("frames", __name__)


@frames.route("/v1/sessions/<session_id>/stream", websocket=True)
def stream(session_id: str) -> Taken:
    """Play a session over a WebSocket."""
    server = state()
    connection = Connection(request.environ, server.settings.largest_frame, server.settings.client_timeout)
    try:
        server.watch.add(connection)
        _play(server, connection, session_id)
    finally:
        server.watch.remove(connection)
        connection.hang_up()
    return Taken(gunicorn=connection.gunicorn)


def _play(server: ServerState, connection: Connection, session_id: str) -> None:
    session: Session | None = None
    left = connection.left
    try:
        while (frame := connection.receive()) is not None:
            connection.stepping_since, number = time.monotonic(), NUMBERLESS
            try:
                message = read_message(frame)
                number = number_of(message)
                if session is None or session.closed or isinstance(message, Create):
                    session, reply = _attach(server, session, session_id, message, frame, left)
                else:
                    reply = session.call(message, frame, left)
                if session.closed:
                    server.sessions.forget(session_id)
            except Exception as error:  # noqa: BLE001 - whatever happens is told to the client
                reply = encode(server.refusal_of(error, number))
            connection.send(reply)
            connection.stepping_since = None
            if connection.stopping:
                connection.close(1001, "the server is stopping")
    finally:
        if session is not None:
            session.detach(left)


def _attach(
    server: ServerState, before: Session | None, session_id: str, message: Call, frame: bytes, left: Left
) -> tuple[Session, bytes]:
    """Find or make the session of a connection, and do its first call."""
    if isinstance(message, Create):
        session, reply = server.sessions.create(session_id, message, frame, left)
    else:
        session = server.sessions.get(session_id)
        reply = session.call(message, frame, left)
    if session is not before:
        session.attach(left)
        if before is not None:
            before.detach(left)
    return session, reply


@frames.post("/v1/sessions/<session_id>/frames")
def one_frame(session_id: str) -> Response:
    """Do one call of a session."""
    frame = received()
    message, sessions = read_message(frame), state().sessions
    if isinstance(message, Create):
        reply = sessions.create(session_id, message, frame, client())[1]
    else:
        session = sessions.get(session_id)
        reply = session.call(message, frame, client())
        if session.closed:
            sessions.forget(session_id)
    return Response(reply, content_type=CONTENT_TYPE)


@frames.post("/v1/describe")
def describe_frame() -> Response:
    """What a client has to know of an environment before it makes one."""
    message = read_message(received())
    if not isinstance(message, Create):
        raise BadRequest("send the message that would create the session")
    return Response(encode(Answer(NUMBERLESS, pack(state().description(message)))), content_type=CONTENT_TYPE)


def read_message(frame: bytes) -> Call:
    """The message in a frame."""
    try:
        message = read_call(frame)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(f"that is no message: {error or type(error).__name__}") from None
    if isinstance(message, Create) and message.version != VERSION:
        raise NotAvailable(
            f"the client speaks version {shown(message.version)} and the server version {VERSION} of the "
            "protocol; install the same version of envweave-gym on both sides"
        )
    return message
