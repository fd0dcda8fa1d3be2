"""Servers on this machine that take frames over Unix sockets, without HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from envweave_gym.net.framed_socket import FramedSocket, connect
from envweave_gym.remote.address import Address
from envweave_gym.wire.framing import LARGEST_REPLY
from envweave_gym.wire.messages import DELETE, HEALTH, Answer, Ask, Hello, encode, read_reply

_NUMBER = -2


class UnixConnector:
    """Reaches a server of the same user by a framed Unix socket."""

    sees_abandoned = False

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> FramedSocket:
        """Connect and send the hello, which has no reply."""
        path = unquote(self._address.url.partition("://")[2].rstrip("/"))
        peer = connect(path, deadline, LARGEST_REPLY)
        try:
            peer.send(encode(Hello(self._address.secret(), session_id)), deadline)
        except BaseException:
            peer.close()
            raise
        return peer

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame that describes the environment that a create would make."""
        peer = self.connect("", deadline)
        try:
            peer.send(create, deadline)
            return peer.receive(deadline)
        finally:
            peer.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Close a session, whose call may still be under way."""
        self._ask(DELETE, session_id, deadline)

    def is_healthy(self, deadline: float) -> bool:
        """Return whether the server takes calls."""
        return not self._ask(HEALTH, None, deadline)["stopping"]

    def count_sessions(self, deadline: float) -> int | None:
        """Return how many sessions the server has."""
        return self._ask(HEALTH, None, deadline)["sessions"]

    def _ask(self, question: str, argument: Any, deadline: float) -> Any:
        reply = read_reply(self.describe(encode(Ask(_NUMBER, question, argument)), deadline))
        if isinstance(reply, Answer):
            return reply.value
        raise ConnectionError(f"{self._address.url} refuses to answer {question}: {reply}")
