"""Frames to an actor on the same machine, through its door: a call of Ray takes several times as long."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from envweave_gym.remote.actors import ActorTransport, line_of, place_in
from envweave_gym.remote.address import Address
from envweave_gym.remote.transport import Transport, left, lost, too_late
from envweave_gym.wire.doors import TOO_LARGE, Door, knocked

_KNOCK = 0.5
"""So many seconds an actor may take to let somebody in; its kernel does that at once."""


def way_to(address: Address, session_id: str, deadline: float) -> Transport:
    """The shortest way to an actor: through its door, or else by calls."""
    line = line_of(session_id, uuid.uuid4().hex)
    door = knocked(place_in(address.url), min(_KNOCK, left(deadline, address.url)))
    return ActorTransport(address, line, deadline) if door is None else DoorTransport(address, line, door)


class DoorTransport:
    """Hands frames in at a door. Where a reply is too large for that, it and all after it come by calls.

    The frame is sent once more then, which is answered with the reply that there is already.
    """

    def __init__(self, address: Address, line: bytes, door: Door) -> None:
        self._address, self._line, self._door = address, line, door
        self._unanswered: deque[bytes] = deque()
        self._calls: ActorTransport | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it."""
        if self._calls is not None:
            self._calls.send(frame, deadline, before)
            return
        frames = (before, frame) if before else (frame,)
        with self._talking(deadline):
            self._door.send([self._line + one for one in frames])
        self._unanswered += frames

    def receive(self, deadline: float) -> bytes:
        """The reply to the oldest frame whose reply has not been received."""
        if self._calls is None:
            with self._talking(deadline):
                reply = self._door.receive()
            if reply != TOO_LARGE:
                self._unanswered.popleft()
                return reply
            self._call_from_now_on(deadline)
        assert self._calls is not None
        return self._calls.receive(deadline)

    @contextmanager
    def _talking(self, deadline: float) -> Generator[None]:
        self._door.socket.settimeout(left(deadline, self._address.url))
        try:
            yield
        except TimeoutError:
            raise too_late(self._address.url) from None
        except OSError as error:
            raise lost(self._address.url, str(error)) from None

    def _call_from_now_on(self, deadline: float) -> None:
        self._door.close()
        self._calls = ActorTransport(self._address, self._line, deadline)
        for frame in self._unanswered:
            self._calls.send(frame, deadline)
        self._unanswered.clear()

    @property
    def next_reply(self) -> Any:
        """What tells that the next reply may have come; ``None`` where none is to come."""
        if self._calls is not None:
            return self._calls.next_reply
        return self._door if self._unanswered else None

    def close(self) -> None:
        """Hang up, which the actor sees."""
        self._door.close()
        if self._calls is not None:
            self._calls.close()
