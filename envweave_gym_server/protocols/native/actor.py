"""A server without a port: the frames come as calls of a Ray actor, which holds an :class:`ActorServer`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from envweave_gym.wire.messages import NUMBERLESS, Answer, Create, encode, pack
from envweave_gym_server.core.errors import BadRequest
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.offers.everything import Everything
from envweave_gym_server.offers.offers import offers_of
from envweave_gym_server.protocols.native.door import Doorkeeper
from envweave_gym_server.sessions.channel import ClientChannel, read_message
from envweave_gym_server.sessions.service import SessionService

_MOST_LEFT = 4096
"""So many clients that have hung up are remembered: calls of theirs that are under way may come later."""
SILENCE = 3600.0
"""After so many seconds without a call a client that has not hung up is taken to be dead."""

LARGE = 1 << 20
"""Replies of so many bytes go as arrays, which Ray maps into the client's memory instead of copying them."""


class ActorServer:
    """Answers frames, in as many threads as call it; whoever may call the actor may play everything."""

    def __init__(self, ids: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
        """It offers ``ids``, or whatever can be made here; modules are also looked for in ``paths``."""
        sys.path += [path for path in paths if path not in sys.path]
        offers = offers_of(ids) if ids else Everything()
        limits: dict[str, Any] = {"max_sessions": 4096, "idle_timeout": 60.0}
        limits |= {"max_rows": 1 << 20, "max_environments": 1 << 24}
        self._state = SessionService(offers, Settings(log_size=0, **limits))
        self._lines: dict[bytes, ActorChannel] = {}
        self._left: dict[bytes, None] = {}
        self._lock = threading.Lock()
        self._door: Doorkeeper | None = None

    def open_door(self, name: str) -> None:
        """Let those in who are on the same machine."""
        self._door = Doorkeeper(name, self.frames, self.leave)

    def frames(self, told: bytes) -> Any:
        """The reply to the next frame on a line, which :func:`envweave_gym.remote.actors.line_of` names."""
        size = told[0] + 1
        name = told[:size]
        line = self._lines.get(name) or self._opened(name)
        reply = line.answer(told[size:])
        return np.frombuffer(reply, np.uint8) if len(reply) >= LARGE else reply

    def _opened(self, name: bytes) -> ActorChannel:
        opened = ActorChannel(self._state, name[1:].partition(b"/")[0].decode())
        with self._lock:
            for other in [key for key, line in self._lines.items() if line.has_left()]:
                self._lines.pop(other).leave()
            if name in self._left:
                opened.leave()  # it is closed after its answer
                return opened
            return self._lines.setdefault(name, opened)

    def leave(self, name: bytes) -> None:
        """The client has hung up: the lease of its session runs, unless there is another line to it."""
        with self._lock:
            line = self._lines.pop(name, None)
            self._left[name] = None
            if len(self._left) > _MOST_LEFT:
                del self._left[next(iter(self._left))]
        if line is not None:
            line.leave()

    def describe(self, frame: bytes) -> bytes:
        """The frame that tells what an environment is like."""
        try:
            message = read_message(frame)
            if not isinstance(message, Create):
                raise BadRequest("send the message that would create the session")
            return encode(Answer(NUMBERLESS, pack(self._state.description(message))))
        except Exception as error:  # noqa: BLE001 - whatever happens is told to the client
            return encode(self._state.refusal_of(error, NUMBERLESS))

    def stop(self) -> None:
        """Close the door, and all environments."""
        if self._door is not None:
            self._door.close()
        self._state.stop()


class ActorChannel(ClientChannel):
    """A line whose client hangs up by a call of its own, and may die without one."""

    def __init__(self, server: SessionService, session_id: str) -> None:
        super().__init__(server, session_id, self.has_left)
        self._used, self._is_left, self._turn = time.monotonic(), False, threading.Lock()

    def answer(self, frame: bytes) -> bytes:
        """The frame of the reply."""
        with self._turn:
            self._used = time.monotonic()
            try:
                return super().answer(frame)
            finally:
                if self._is_left:
                    self.close()

    def has_left(self) -> bool:
        """Whether the client is gone."""
        return self._is_left or time.monotonic() - self._used > SILENCE

    def leave(self) -> None:
        """The client is gone; a call that is under way ends first."""
        self._is_left = True
        if self._turn.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._turn.release()
