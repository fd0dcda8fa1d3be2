"""Connector to servers on this machine that take length-prefixed frames over Unix sockets, without HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from envweave_gym.net.framed_socket import FramedSocket, connect
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import lost
from envweave_gym.wire.messages import (
    DELETE,
    HEALTH,
    LARGEST_REPLY,
    Answer,
    Ask,
    Hello,
    Refused,
    Reply,
    encode,
    read_reply,
)

_NUMBER = -2  # the number of a question on a connection of its own; negative numbers are questions


class UnixConnector:
    """Client of a server of the same user, over a framed Unix socket."""

    sees_abandoned = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> FramedSocket:
        """Connect and send the hello frame; the server sends no reply to it."""
        url = self._address.url
        path = unquote(url.partition("://")[2].rstrip("/"))
        try:
            return connect_session(path, Hello(self._address.secret(), session_id), deadline)
        except OSError as error:
            raise lost(url, error) from None

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame with the server's description of the environment that the create message would make."""
        peer = self.connect("", deadline)
        try:
            peer.send(create, deadline)
            return peer.receive(deadline)
        except OSError as error:
            raise lost(self._address.url, error) from None
        finally:
            peer.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Close a session on the server, even if its last call is still running."""
        self._ask(DELETE, session_id, deadline)

    def is_healthy(self, deadline: float) -> bool:
        """Return whether the server takes calls.

        A server that refuses the token counts as healthy: it has answered, and tells others nothing about itself.
        """
        health = self._health(deadline)
        return health is None or not health["stopping"]

    def count_sessions(self, deadline: float) -> int | None:
        """Return the number of sessions on the server; ``None`` if the server refuses the token."""
        health = self._health(deadline)
        return None if health is None else health["sessions"]

    def _health(self, deadline: float) -> dict[str, Any] | None:
        reply = self._ask(HEALTH, None, deadline)
        if isinstance(reply, Answer):
            return reply.value
        if isinstance(reply, Refused) and reply.kind == "Unauthorized":
            return None
        raise ConnectionError(f"{self._address.url} does not report its health: {reply}")

    def _ask(self, question: str, argument: Any, deadline: float) -> Reply:
        return read_reply(self.describe(encode(Ask(_NUMBER, question, argument)), deadline))


def connect_session(path: str, hello: Hello, deadline: float) -> FramedSocket:
    """Connect to the Unix socket at ``path``, send the ``hello`` frame, and return the connection.

    No reply is awaited: a server that refuses the hello answers the first call with the refusal.
    """
    peer = connect(path, deadline, LARGEST_REPLY)
    try:
        peer.send(encode(hello), deadline)
    except OSError:
        peer.close()
        raise
    return peer
