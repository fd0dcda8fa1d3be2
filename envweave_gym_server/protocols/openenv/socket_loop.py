"""OpenEnv's WebSocket: one connection is one session, whose messages the thread of its request answers in turn."""

from __future__ import annotations

import time

from envweave_gym.net.websocket import GOING_AWAY, TEXT
from envweave_gym_server.protocols.json_rpc import answer
from envweave_gym_server.protocols.native.websocket import Connection
from envweave_gym_server.protocols.openenv.played_session import (
    PlayedSession,
    close_played,
    find_played,
    open_played,
)
from envweave_gym_server.protocols.openenv.socket_messages import (
    CLOSE,
    MCP,
    RESET,
    SESSION_ERROR,
    STATE,
    OpenEnvError,
    error_of,
    error_of_creation,
    packed,
    read_message,
)
from envweave_gym_server.protocols.openenv.tool_requests import OpenEnvTools, is_about_tools, step_with_tools
from envweave_gym_server.sessions.service import SessionService


def play_socket(service: SessionService, connection: Connection, name: str, session_id: str | None) -> None:
    """Play a session over a WebSocket until one end closes it.

    Without ``session_id`` the session is new and ends with the connection. With it, the session was created by
    ``openenv/session/create`` or ``POST /reset``, and stays; only one WebSocket at a time may play it.
    """
    try:
        played = (
            _found(service, name, session_id)
            if session_id
            else open_played(service, name, None, connection.left)
        )
    except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
        most = service.settings.max_sessions
        refusal = error_of_creation(error, name, len(service.sessions), most)
        _send(connection, refusal.message())
        connection.close()
        connection.linger()
        return
    session = played.session
    session.attach(connection.left)
    connection.stepping_since = None
    try:
        _SocketLoop(service, connection, name, played).run()
    finally:
        session.detach(connection.left)
        if session_id:
            played.attachment.release()
        else:
            close_played(service, session)


def _found(service: SessionService, name: str, session_id: str) -> PlayedSession:
    played = find_played(service, name, session_id)
    if not played.attachment.acquire(blocking=False):
        raise OpenEnvError(
            SESSION_ERROR, f"Session {session_id} already has a WebSocket; close that one first"
        )
    return played


def _send(connection: Connection, message: dict[str, object]) -> None:
    connection.send(packed(str(message["type"]), message["data"]), kind=TEXT)


class _SocketLoop:
    """Loop over the messages of one connection."""

    def __init__(
        self, service: SessionService, connection: Connection, name: str, played: PlayedSession
    ) -> None:
        self._connection, self._played = connection, played
        self._tools = OpenEnvTools(service, name, connection.left, played)

    def run(self) -> None:
        """Answer messages until the client closes the connection or has left, or an error ends the session.

        Messages that were received before the client left are dropped: nobody would read their replies.
        """
        connection = self._connection
        while (frame := connection.receive()) is not None and connection.is_open:
            connection.stepping_since = time.monotonic()
            goes_on = self._answer(frame)
            connection.stepping_since = None
            if not goes_on:
                connection.close()
                connection.linger()
                return
            if connection.stopping:
                connection.close(GOING_AWAY, "the server is stopping")

    def _answer(self, frame: bytes) -> bool:
        """Answer a message; return whether the session goes on."""
        connection, played, left = self._connection, self._played, self._connection.left
        try:
            kind, data = read_message(frame)
            if kind == CLOSE:
                return False
            if kind == MCP:
                reply = packed(MCP, answer(data, self._tools.methods) or {})
            elif kind == STATE:
                reply = packed(STATE, played.state(left))
            elif kind == RESET:
                reply = packed("observation", played.reset(data, left))
            elif is_about_tools(data):
                reply = packed("observation", step_with_tools(played, data, left))
            else:
                reply = packed("observation", played.step(data, left))
        except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
            refusal = error_of(error)
            _send(connection, refusal.message())
            return not refusal.ends_session
        connection.send(reply, kind=TEXT)
        return True
