"""Connections to Ray actors: over a Unix socket on the same machine, else by actor calls, which are slower."""

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
"""Time limit for the Unix socket; the kernel accepts a connection to a live actor at once."""


class ActorConnector:
    """Connector to the server in a Ray actor."""

    sees_abandoned = True

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Return a transport over the actor's Unix socket if it is on this machine, else one of actor calls."""
        address, channel = self._address, channel_prefix(session_id, uuid.uuid4().hex)
        until = time.monotonic() + min(_CONNECT_TIMEOUT_S, seconds_left(deadline, address.url))
        try:
            peer = connect(socket_of_actor(actor_name(address.url)), until)
        except OSError:
            return ActorTransport(address, channel, deadline)
        return LocalActorTransport(address, channel, peer)

    def describe(self, create: bytes, deadline: float) -> bytes:
        """Return a frame with the spaces and metadata of the environment that the create message would make."""
        transport = ActorTransport(self._address, b"", deadline)
        try:
            transport.send(create, deadline)
            return transport.receive(deadline)
        finally:
            transport.close()

    def delete(self, session_id: str, deadline: float) -> None:
        """Do nothing: the actor notices when a client disconnects."""

    def is_healthy(self, deadline: float) -> bool:
        """Return ``True`` if the actor answers; raise ``ConnectionError`` or ``TimeoutError`` if not."""
        return bool(self.describe(b"", deadline))

    def count_sessions(self, deadline: float) -> int | None:
        """Return ``None``: an actor does not report its number of sessions."""


class LocalActorTransport:
    """Transport over a Unix socket, which changes to actor calls when a reply is too large for the socket.

    It sends unanswered frames again as calls; the server answers from the replies that it has stored.
    """

    def __init__(self, address: Address, channel: bytes, peer: FramedSocket) -> None:
        self._address, self._channel, self._peer = address, channel, peer
        self._unanswered: deque[bytes] = deque()
        self._calls: ActorTransport | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, after ``before`` if that is not empty; raise ``ConnectionError`` if the actor is lost."""
        if self._calls is not None:
            self._calls.send(frame, deadline, before)
            return
        try:
            self._peer.send(self._channel + frame, deadline, before and self._channel + before)
        except OSError as error:
            raise lost(self._address.url, error) from None
        self._unanswered += (before, frame) if before else (frame,)

    def receive(self, deadline: float) -> bytes:
        """Return the reply to the oldest unanswered frame; raise ``ConnectionError`` if the actor is lost."""
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
        """Socket of the next reply, or its reference for ``ray.wait``; ``None`` if no reply is due."""
        if self._calls is not None:
            return self._calls.next_reply
        return self._peer if self._unanswered else None

    def close(self) -> None:
        """Close the connection; the actor notices that."""
        self._peer.close()
        if self._calls is not None:
            self._calls.close()
