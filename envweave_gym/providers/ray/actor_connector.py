"""Connections to Ray actors: over a Unix socket on the same machine, else by actor calls, which are slower."""

from __future__ import annotations

import time
import uuid

from envweave_gym.net.deadlines import seconds_left
from envweave_gym.providers.ray.actor_calls import ActorTransport, actor_name, channel_prefix
from envweave_gym.remote.address import Address
from envweave_gym.remote.transports import Transport
from envweave_gym.remote.transports.unix_sockets import connect_session
from envweave_gym.wire.messages import Hello, socket_of_actor

_CONNECT_TIMEOUT_S = 0.5
"""Time limit for the Unix socket; the kernel accepts a connection to a live actor at once."""


class ActorConnector:
    """Connector to the server in a Ray actor."""

    sees_abandoned = True

    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self, session_id: str, deadline: float) -> Transport:
        """Return a transport over the actor's Unix socket if it is on this machine, else one of actor calls."""
        url = self._address.url
        until = time.monotonic() + min(_CONNECT_TIMEOUT_S, seconds_left(deadline, url))
        try:
            return connect_session(socket_of_actor(actor_name(url)), Hello(session=session_id), until)
        except OSError:
            return ActorTransport(self._address, channel_prefix(session_id, uuid.uuid4().hex), deadline)

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
