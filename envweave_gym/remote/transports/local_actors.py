"""Frames to an actor on the same machine over a Unix socket: a call of Ray takes several times as long."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Any

from envweave_gym.net.deadlines import seconds_left
from envweave_gym.net.framed_socket import FramedSocket, connect
from envweave_gym.remote.actors import ActorTransport, line_of, place_in
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import Transport
from envweave_gym.wire.framing import TOO_LARGE, socket_of_actor

_CONNECT_TIMEOUT_S = 0.5
"""An actor that runs accepts at once, in its kernel."""


class ActorConnector:
    """Reaches a server in a Ray actor."""

    sees_abandoned = True

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Connect to the Unix socket of the actor on the same machine, else call it through Ray."""
        address, line = self._address, line_of(session_id, uuid.uuid4().hex)
        until = time.monotonic() + min(_CONNECT_TIMEOUT_S, seconds_left(deadline, address.url))
        try:
            peer = connect(socket_of_actor(place_in(address.url)), until)
        except OSError:
            return ActorTransport(address, line, deadline)
        return LocalActorTransport(address, line, peer)

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame that describes the environment that a create would make."""
        transport = ActorTransport(self._address, b"", deadline)
        try:
            transport.send(create, deadline)
            return transport.receive(deadline)
        finally:
            transport.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Do nothing: the actor sees which clients have left."""

    def is_healthy(self, deadline: float) -> bool:
        """Return ``True``: an actor that lives answers whatever it is asked, and another raises a loss."""
        return bool(self.describe(b"", deadline))

    def count_sessions(self, deadline: float) -> int | None:
        """Return ``None``: an actor does not say."""


class LocalActorTransport:
    """Sends frames over a Unix socket. From a reply on that is too large for it, calls of Ray take over.

    The frame is sent once more then, which is answered with the reply that there is already.
    """

    def __init__(self, address: Address, line: bytes, peer: FramedSocket) -> None:
        self._address, self._line, self._peer = address, line, peer
        self._unanswered: deque[bytes] = deque()
        self._calls: ActorTransport | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it."""
        if self._calls is not None:
            self._calls.send(frame, deadline, before)
            return
        self._peer.send(self._line + frame, deadline, before and self._line + before)
        self._unanswered += (before, frame) if before else (frame,)

    def receive(self, deadline: float) -> bytes:
        """The reply to the oldest frame whose reply has not been received."""
        if self._calls is None:
            reply = self._peer.receive(deadline)
            if reply != TOO_LARGE:
                self._unanswered.popleft()
                return reply
            self._call_from_now_on(deadline)
        assert self._calls is not None
        return self._calls.receive(deadline)

    def _call_from_now_on(self, deadline: float) -> None:
        self._peer.close()
        self._calls = ActorTransport(self._address, self._line, deadline)
        for frame in self._unanswered:
            self._calls.send(frame, deadline)
        self._unanswered.clear()

    @property
    def next_reply(self) -> Any:
        """A socket or what ``ray.wait`` takes, to wait for the next reply; ``None`` where none is to come."""
        if self._calls is not None:
            return self._calls.next_reply
        return self._peer if self._unanswered else None

    def close(self) -> None:
        """Hang up, which the actor sees."""
        self._peer.close()
        if self._calls is not None:
            self._calls.close()
