"""Routes of the native protocol: frames over a WebSocket, or in request bodies where WebSockets are blocked."""

from __future__ import annotations

import time

from flask import Blueprint, Response, request

from envweave_gym.wire.messages import CONTENT_TYPE, NUMBERLESS, Answer, Create, Created, encode, pack
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.protocols.client_sockets import TAKEN
from envweave_gym_server.protocols.current_app import service, websockets
from envweave_gym_server.protocols.native.websocket import Connection
from envweave_gym_server.protocols.rest.openapi import operation
from envweave_gym_server.protocols.rest.schemas import client, received
from envweave_gym_server.sessions.channel import ClientChannel, read_message

frames = Blueprint("frames", __name__)

_CREATED = encode(Created(0))


@frames.route("/v1/sessions/<session_id>/stream", websocket=True)
def stream(session_id: str) -> Response:
    """Play a session over a WebSocket."""
    settings = service().settings
    connection = Connection(request.environ, settings.largest_frame, settings.client_timeout)
    websockets().add(connection)  # before it opens: the limit must count it when the next one asks
    try:
        connection.open()
        _play(connection, session_id)
    finally:
        websockets().remove(connection)
        connection.hang_up()
    request.environ[TAKEN] = True
    return Response()


def _play(connection: Connection, session_id: str) -> None:
    channel = ClientChannel(service(), session_id, connection.left)
    try:
        while (frame := connection.receive()) is not None:
            connection.stepping_since = time.monotonic()
            reply = channel.answer(frame)
            # a client that sends its first reset together with the create waits for both replies
            connection.send(reply, later=reply == _CREATED and connection.has_more)
            connection.stepping_since = None
            if connection.stopping:
                connection.close(1001, "the server is stopping")
    finally:
        channel.close()


@frames.get("/v1/sessions/<session_id>/stream")
@operation(None, status=101, refuses=(400, 503))
def stream_without_upgrade(session_id: str) -> Response:
    """Play a session over a WebSocket, in the frames of ``envweave_gym.make``."""
    raise BadRequest(
        "this address takes WebSockets; ask for one with 'Upgrade: websocket', or send frames to "
        f"/v1/sessions/{session_id}/frames"
    )


@frames.post("/v1/sessions/<session_id>/frames")
def one_frame(session_id: str) -> Response:
    """Do one call of a session."""
    frame = received()
    message, sessions = read_message(frame), service().sessions
    if isinstance(message, Create):
        reply = sessions.create(session_id, message, frame, client())[1]
    else:
        session = sessions.get(session_id)
        reply = session.call(message, frame, client())
        if session.core.closed:
            sessions.forget(session_id)
    return Response(reply, content_type=CONTENT_TYPE)


@frames.post("/v1/describe")
def describe_frame() -> Response:
    """Return the description of the environment that a create message would make; no session is opened."""
    message = read_message(received())
    if not isinstance(message, Create):
        raise BadRequest("send the message that would create the session")
    return Response(
        encode(Answer(NUMBERLESS, pack(service().description(message)))), content_type=CONTENT_TYPE
    )
