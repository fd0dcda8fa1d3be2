"""A session: one environment, its lock, its last call and reply, and who waits for it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Call,
    Close,
    Create,
    Created,
    Refused,
    Reset,
    Step,
    encode,
    number_of,
)
from envweave_gym_server.core.errors import ClientLeft, NoSession
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.environments.host import Host
from envweave_gym_server.sessions.asked import Asked
from envweave_gym_server.sessions.session_log import EventLog

LOOK_EVERY = 0.2
"""So many seconds somebody waits for a session that is busy until it is seen whether the client is there."""

_NUMBERED = (Reset, Step)
_REFUSED = encode(Refused(0, "", ""))[0]
"""The first byte of every refusal and of no other reply: a message is an array, and this its length."""
_log = logging.getLogger(__name__)


Left = Callable[[], bool]
"""Tells of a client whether it has hung up."""


def stays() -> bool:
    """What a client in this process is taken to do."""
    return False


class Session:
    """Does each call once: the next number is done, the last is answered again, any other is refused."""

    def __init__(
        self,
        session_id: str,
        create: Create,
        frame: bytes,
        host: Host,
        metrics: Metrics | None = None,
        log_size: int = 0,
    ) -> None:
        self.id, self.made_of = session_id, create
        self.env_id, self.api = create.env_id, create.api
        self.committed = 0
        self.closed = False
        self.used = time.monotonic()
        self.events = EventLog(log_size)
        self.notes: dict[str, Any] = {}
        """What the protocols that play it remember of it."""
        self._host = host
        self._metrics = metrics or Metrics()
        self._tally = self._metrics.begin()
        self._lock = threading.Lock()
        self._attached: list[Left] = []
        self._caller: Left = stays
        """Who has made the call that is under way."""
        self._waiting: list[Left] = []
        self._first_frame = frame
        self._last_frame, self._last_reply = frame, encode(Created(0))
        self.asked = Asked(self._last_reply)
        """Who must act."""

    def call(self, message: Call, frame: bytes, left: Left = stays) -> bytes:
        """The frame of the reply to a message, whose frame is ``frame``.

        While another call is under way it waits, until the client has ``left``: the call is not done then.
        """
        self._take_turn(left)
        try:
            return self._call(message, frame)
        finally:
            self._lock.release()

    def call_next(self, build: Callable[[int], tuple[Call, bytes]], left: Left = stays) -> bytes:
        """The frame of the reply to the next call, whoever else calls at the same time.

        ``build`` is told its number, and gives the message and its frame.
        """
        self._take_turn(left)
        try:
            return self._call(*build(self.committed + 1))
        finally:
            self._lock.release()

    def peek(self, message: Ask, frame: bytes, left: Left = stays) -> bytes:
        """The answer to a question of somebody who only looks on: that is no use of the session."""
        self._wait(left)
        try:
            if self.closed:
                raise self._gone()
            return self._host.answer(message, frame)
        finally:
            self._lock.release()

    def _take_turn(self, left: Left) -> None:
        """Take the lock, for a client that uses the session from now on."""
        if not self._lock.acquire(blocking=False):
            self._waiting.append(left)
            try:
                self._wait(left)
            finally:
                self._waiting.remove(left)
        self._caller = left

    def _wait(self, left: Left) -> None:
        """Take the lock."""
        while not self._lock.acquire(timeout=LOOK_EVERY):
            if left():
                raise ClientLeft(f"the client that waited for session {self.id} has left")

    @property
    def last_reply(self) -> bytes:
        """The frame of the reply to the last call that was done."""
        return self._last_reply

    def _call(self, message: Call, frame: bytes) -> bytes:
        if self.closed:
            raise self._gone()
        if isinstance(message, _NUMBERED) and message.call == self.committed + 1:
            return self._do(message, frame)
        try:
            return self._other(message, frame)
        finally:
            self.used = time.monotonic()

    def _gone(self) -> NoSession:
        return NoSession(f"session {self.id} is closed; create another")

    def _do(self, message: Reset | Step, frame: bytes) -> bytes:
        """The next call: every step comes along here."""
        started = time.monotonic()
        reply, done = self._host.do(message, frame)
        self.used = now = time.monotonic()
        kind = type(message)
        if not done:
            self._tally.calls[kind, "refused"] += 1
            return reply
        self.committed, self._last_frame, self._last_reply = message.call, frame, reply
        self.asked = self.asked.after(message, reply) if isinstance(message, Reset) else Asked(reply)
        self._tally.took(kind, now - started)
        self.events.add(message.call, reply)
        if reply[0] == _REFUSED:
            self._tally.calls[kind, "crashed"] += 1
            _log.warning("environment crashed", extra={"session": self.id, "env": self.env_id})
        return reply

    def _other(self, message: Call, frame: bytes) -> bytes:
        """What changes nothing: a question, the last call once more, or one that is not the next."""
        if isinstance(message, Ask):
            started = time.monotonic()
            reply = self._host.answer(message, frame)
            self._tally.took(Ask, time.monotonic() - started)
            return reply
        if isinstance(message, Close):
            self._tally.calls[Close, "done"] += 1
            self._shut("closed")
            return encode(Answer(message.number, None))
        number = number_of(message)
        if frame == self._first_frame:  # clients send it together with the first reset, and again with that
            self._tally.calls[Create, "repeated"] += 1
            return encode(Created(0))
        repeated = number == self.committed and frame == self._last_frame
        self._tally.calls[type(message), "repeated" if repeated else "refused"] += 1
        return self._last_reply if repeated else encode(self._conflict(number))

    def _conflict(self, number: int) -> Refused:
        known = self.committed
        reason = "another call had that number" if number == known else f"the next call is {known + 1}"
        told = f"call {number} of session {self.id} is refused: {reason}"
        return Refused(number, "Conflict", told, known)

    def attach(self, left: Left) -> None:
        """Keep the session until the client of a connection has ``left``."""
        self._attached.append(left)

    def detach(self, left: Left) -> None:
        """Let the lease run again, from now on."""
        self._attached.remove(left)
        self.used = time.monotonic()

    @property
    def attached(self) -> int:
        """How many connections there are whose clients have not left."""
        return sum(not left() for left in self._attached.copy())

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    @property
    def wanted(self) -> bool:
        """Whether there is a client that may call or waits for its answer, or a call that cannot be ended."""
        if self.attached or any(not left() for left in self._waiting.copy()):
            return True
        return self.busy and not (self._host.may_be_killed and self._caller())

    def idle_for(self, now: float) -> float:
        """How many seconds nobody has used it, 0 while somebody does."""
        if self.wanted:
            self.used = now  # it may be noticed late that a client has left
        return now - self.used

    def close(self, why: str = "closed", lease: float = math.inf) -> None:
        """Close the environment, once the call that is under way is over.

        That is ended, where it can be, when nobody has waited for it for so many seconds.
        """
        while not self._lock.acquire(timeout=LOOK_EVERY):
            if self.idle_for(time.monotonic()) > lease:
                self._host.kill()
        try:
            self._shut(why)
        finally:
            self._lock.release()

    def _shut(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._metrics.end(self._tally, why)
        about = {"session": self.id, "env": self.env_id, "why": why, "calls": self.committed}
        _log.info("session ended", extra=about)
        try:
            self._host.close()
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also here
            _log.warning("environment did not close", extra={**about, "error": type(error).__name__})
        finally:
            self.events.close()
