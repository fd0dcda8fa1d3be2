"""Server in a Ray actor: frames arrive as actor calls, or over its Unix socket from the same machine."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from envweave_gym.wire.messages import socket_of_actor
from envweave_gym_server.core.settings import settings_of_owner
from envweave_gym_server.offers.offers import Everything, offers_of
from envweave_gym_server.protocols.native.framed_listener import listen_when_free
from envweave_gym_server.protocols.native.framed_sessions import FramedSessions
from envweave_gym_server.sessions.channel import ClientChannel, describe
from envweave_gym_server.sessions.service import SessionService

_MOST_LEFT = 4096
"""Number of disconnected clients to remember, because calls of theirs may arrive later."""
SILENCE_S = 3600.0
"""A client that has neither called nor disconnected for this long is taken to be dead."""
_TAKEN_S = 30.0
"""Time for the actor's previous process to release the address of its socket."""
LARGE = 1 << 20
"""Size of replies from which they are sent as arrays, which Ray maps into the client's memory without a copy."""


class ActorServer:
    """Server in a Ray actor: answers frames in the threads that call it, without access checks.

    The frame of a call begins with the id of its channel
    (:func:`envweave_gym.providers.ray.actor_calls.channel_prefix`).
    """

    def __init__(self, ids: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
        """Serve the environments ``ids``, by default all that can be made here.

        ``paths`` are added to the import path.
        """
        sys.path += [path for path in paths if path not in sys.path]
        offers = offers_of(ids) if ids else Everything()
        self._service = SessionService(offers, settings_of_owner())
        self._channels: dict[bytes, ActorChannel] = {}
        self._left: dict[bytes, None] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def listen_locally(self, name: str) -> None:
        """Accept clients on the same machine at the Unix socket of the actor ``name``, in a thread."""
        address = socket_of_actor(name)
        arguments = (address, listen_when_free(address, 0.0, self._stopped))
        threading.Thread(target=self._accept, args=arguments, name="framed listener", daemon=True).start()

    def _accept(self, address: str, listener: socket.socket | None) -> None:
        listener = listener or listen_when_free(address, _TAKEN_S, self._stopped)
        if listener is None:
            return  # then all clients call
        sessions = FramedSessions(self._service, listener, token="")
        sessions.start()
        if self._stopped.is_set():
            sessions.stop()

    def frames(self, frame: bytes) -> Any:
        """Return the reply to the next frame of a channel; a large one as an array."""
        size = frame[0] + 1
        channel_id = frame[:size]
        channel = self._channels.get(channel_id) or self._opened(channel_id)
        reply = channel.answer(frame[size:])
        return np.frombuffer(reply, np.uint8) if len(reply) >= LARGE else reply

    def _opened(self, channel_id: bytes) -> ActorChannel:
        opened = ActorChannel(self._service, channel_id[1:].partition(b"/")[0].decode())
        with self._lock:
            for other in [key for key, channel in self._channels.items() if channel.has_left()]:
                self._channels.pop(other).leave()
            if channel_id in self._left:
                opened.leave()  # it is closed after its answer
                return opened
            return self._channels.setdefault(channel_id, opened)

    def leave(self, channel_id: bytes) -> None:
        """Close the channel of a client that has disconnected; from now on the lease of its session runs."""
        with self._lock:
            channel = self._channels.pop(channel_id, None)
            self._left[channel_id] = None
            if len(self._left) > _MOST_LEFT:
                del self._left[next(iter(self._left))]
        if channel is not None:
            channel.leave()

    def describe(self, frame: bytes) -> bytes:
        """Return the frame with the description of the environment that the create message would make."""
        return describe(self._service, frame)

    def stop(self) -> None:
        """Accept no more connections, and close all environments."""
        self._stopped.set()
        self._service.stop()


class ActorChannel(ClientChannel):
    """Channel of a client that reports its disconnect by a call, and may die without one."""

    def __init__(self, service: SessionService, session_id: str) -> None:
        super().__init__(service, session_id, self.has_left)
        self._used, self._is_left, self._turn = time.monotonic(), False, threading.Lock()

    def answer(self, frame: bytes) -> bytes:
        """Return the reply frame."""
        with self._turn:
            self._used = time.monotonic()
            try:
                return super().answer(frame)
            finally:
                if self._is_left:
                    self.close()

    def has_left(self) -> bool:
        """Return whether the client has disconnected, or has been silent for so long that it counts as dead."""
        return self._is_left or time.monotonic() - self._used > SILENCE_S

    def leave(self) -> None:
        """Close the channel after its running call."""
        self._is_left = True
        if self._turn.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._turn.release()
