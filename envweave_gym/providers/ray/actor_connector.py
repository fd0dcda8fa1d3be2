"""Connects to Ray actors: over a Unix socket on the same machine, else by calls of Ray, which are slower."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Any

from envweave_gym.net.deadlines import seconds_left
from envweave_gym.net.framed_socket import FramedSocket, connect
from envweave_gym.providers.ray.actor_calls import ActorTransport, actor_name, channel_prefix
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import Transport, lost
from envweave_gym.wire.messages import TOO_LARGE, socket_of_actor

_CONNECT_TIMEOUT_S = 0.5
"""A live actor accepts at once: the kernel does it."""


class ActorConnector:
    """Reaches a server in a Ray actor."""

    sees_abandoned = True

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Connect to the Unix socket of the actor on the same machine, else call it through Ray."""
        address, channel = self._address, channel_prefix(session_id, uuid.uuid4().hex)
        until = time.monotonic() + min(_CONNECT_TIMEOUT_S, seconds_left(deadline, address.url))
        try:
            peer = connect(socket_of_actor(actor_name(address.url)), until)
        except OSError:
            return ActorTransport(address, channel, deadline)
        return LocalActorTransport(address, channel, peer)

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return the frame that describes the environment that a create would make."""
        transport = ActorTransport(self._address, b"", deadline)
        try:
            transport.send(create, deadline)
            return transport.receive(deadline)
        finally:
            transport.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Do nothing: the actor sees which clients have hung up."""

    def is_healthy(self, deadline: float) -> bool:
        """Return ``True`` if the actor answers; raises a loss if it does not."""
        return bool(self.describe(b"", deadline))

    def count_sessions(self, deadline: float) -> int | None:
        """Return ``None``: actors do not count for others."""


class LocalActorTransport:
    """Sends frames over a Unix socket, until a reply is too large for it; calls of Ray take over then.

    Unanswered frames are sent again by a call; the server answers with the replies it has stored.
    """

    def __init__(self, address: Address, channel: bytes, peer: FramedSocket) -> None:
        self._address, self._channel, self._peer = address, channel, peer
        self._unanswered: deque[bytes] = deque()
        self._calls: ActorTransport | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it."""
        if self._calls is not None:
            self._calls.send(frame, deadline, before)
            return
        try:
            self._peer.send(self._channel + frame, deadline, before and self._channel + before)
        except OSError as error:
            raise lost(self._address.url, error) from None
        self._unanswered += (before, frame) if before else (frame,)

    def receive(self, deadline: float) -> bytes:
        """Receive the reply to the oldest frame whose reply has not been received."""
        if self._calls is None:
            try:
                reply = self._peer.receive(deadline)
            except OSError as error:
                raise lost(self._address.url, error) from None
            # The server answers a reply above the limit of a frame with this mark, and closes the connection.
            if reply != TOO_LARGE:
                self._unanswered.popleft()
                return reply
            self._switch_to_calls(deadline)
        assert self._calls is not None
        return self._calls.receive(deadline)

    def _switch_to_calls(self, deadline: float) -> None:
        self._peer.close()
        self._calls = ActorTransport(self._address, self._channel, deadline)
        for frame in self._unanswered:
            self._calls.send(frame, deadline)
        self._unanswered.clear()

    @property
    def next_reply(self) -> Any:
        """The socket, or the reference for ``ray.wait``, of the next reply; ``None`` if no reply is due."""
        if self._calls is not None:
            return self._calls.next_reply
        return self._peer if self._unanswered else None

    def close(self) -> None:
        """Hang up; the actor sees that its peer has closed the socket."""
        self._peer.close()
        if self._calls is not None:
            self._calls.close()
