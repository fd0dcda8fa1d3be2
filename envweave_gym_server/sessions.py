"""Sessions: one environment each, its lock, its last call and reply, and how long it is kept."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from envweave_gym.faults import AtCapacity, EnvweaveError, InvalidArgument, shown
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
from envweave_gym_server.events import EventLog
from envweave_gym_server.metrics import Metrics

_MAKING = 600.0
"""So many seconds somebody waits for a session that another is making."""

REAP_EVERY = 1.0
"""So many seconds pass between two looks for sessions whose lease is over."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_NUMBERED = (Reset, Step)
_REFUSED = encode(Refused(0, "", ""))[0]
"""The first byte of every refusal and of no other reply: a message is an array, and this its length."""
_log = logging.getLogger(__name__)


_STOPPING = "the server is stopping; use another"


class NoSession(EnvweaveError):
    """There is no session of this id: it never was, was closed, or its lease ran out."""


class Host(Protocol):
    """Where the environment of a session is: in this process, or in one of its own."""

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Reset or step; the frame of the reply, and whether the call was done."""
        ...

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """The frame that answers a question."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


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
        self.attached = 0
        self.closed = False
        self.used = time.monotonic()
        self.events = EventLog(log_size)
        self.notes: dict[str, Any] = {}
        """What the protocols that play it remember of it."""
        self._host = host
        self._metrics = metrics or Metrics()
        self._tally = self._metrics.begin()
        self._lock, self._attaching = threading.Lock(), threading.Lock()
        self._first_frame = frame
        self._last_frame, self._last_reply = frame, encode(Created(0))

    def call(self, message: Call, frame: bytes) -> bytes:
        """The frame of the reply to a message, whose frame is ``frame``."""
        with self._lock:
            return self._call(message, frame)

    def call_next(self, build: Callable[[int], tuple[Reset | Step, bytes]]) -> bytes:
        """The frame of the reply to the next call, whoever else calls at the same time.

        ``build`` gives the message of that number, and its frame.
        """
        with self._lock:
            return self._call(*build(self.committed + 1))

    def peek(self, message: Ask, frame: bytes) -> bytes:
        """The answer to a question of somebody who only looks on: that is no use of the session."""
        with self._lock:
            if self.closed:
                raise self._gone()
            return self._host.answer(message, frame)

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

    def attach(self) -> None:
        """Keep the session for as long as the connection that calls this is there."""
        with self._attaching:
            self.attached += 1

    def detach(self) -> None:
        """Let the lease run again, from now on."""
        with self._attaching:
            self.attached -= 1
        self.used = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    def idle_for(self, now: float) -> float:
        """How many seconds nobody has used it, 0 while somebody does."""
        return 0.0 if self.attached or self.busy else now - self.used

    def close(self, why: str = "closed") -> None:
        """Close the environment, once the call that is under way is over."""
        with self._lock:
            self._shut(why)

    def _shut(self, why: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._metrics.end(self._tally, why)
        about = {"session": self.id, "env": self.env_id, "why": why, "calls": self.committed}
        _log.info("session ended", extra=about)
        try:
            self._host.close()
        except Exception as error:  # noqa: BLE001 - an environment may raise anything, also here
            _log.warning("environment did not close", extra={**about, "error": type(error).__name__})
        finally:
            self.events.close()


class Sessions:
    """The sessions of a server by id; a thread of its own closes those whose lease is over."""

    def __init__(
        self,
        open_host: Callable[[Create], Host],
        *,
        most: int,
        idle_timeout: float,
        metrics: Metrics | None = None,
        log_size: int = 0,
    ) -> None:
        self._open_host, self._most, self._idle_timeout = open_host, most, idle_timeout
        self._metrics, self._log_size = metrics or Metrics(), log_size
        self._sessions: dict[str, Session | None] = {}
        self._lock = threading.Lock()
        self._made = threading.Condition(self._lock)
        self._reaper: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session:
        """The session of this id."""
        if self._stopped.is_set():
            raise AtCapacity(_STOPPING)
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSession(
                f"there is no session {shown(session_id)}: it never was, was closed or was idle too long"
            )
        return session

    def create(self, session_id: str, create: Create, frame: bytes) -> tuple[Session, bytes]:
        """A new session and the reply to its first call; or the one that the same call has made before."""
        with self._lock:
            self._wait_until_made(session_id)
            known = self._sessions.get(session_id)
            if known is None:
                self._reserve(session_id)
        if known is not None:
            return known, known.call(create, frame)
        try:
            host = self._open_host(create)
        except BaseException:
            self._metrics.refused(Create)
            self.forget(session_id)
            raise
        session = Session(session_id, create, frame, host, self._metrics, self._log_size)
        with self._lock:
            self._sessions[session_id] = session
            self._made.notify_all()
        _log.info("session created", extra={"session": session_id, "env": create.env_id, "api": create.api})
        if self._stopped.is_set():
            self._stop(session)
        return session, encode(Created(0))

    def _wait_until_made(self, session_id: str) -> None:
        """A create that comes again while the first is under way gets what that comes to."""
        until = time.monotonic() + _MAKING
        while session_id in self._sessions and self._sessions[session_id] is None:
            if not self._made.wait(until - time.monotonic()):
                raise AtCapacity(f"session {session_id!r} is still being made; ask again")

    def _reserve(self, session_id: str) -> None:
        if not _ID.fullmatch(session_id):
            raise InvalidArgument(
                f"{shown(session_id)} is no id of a session; take up to 128 letters, digits and . _ -"
            )
        if self._stopped.is_set():
            raise AtCapacity(_STOPPING)
        if len(self._sessions) >= self._most:
            count = f"{len(self._sessions)} of {self._most}"
            raise AtCapacity(f"{count} sessions are open; close one or come again")
        if self._reaper is None:  # not before: a server forks when it has been made, and loses its threads
            self._reaper = _started("reaper", self._reap)
        self._sessions[session_id] = None

    def close(self, session_id: str) -> None:
        """Close one session; where a call is under way, once that is over, which nobody waits for."""
        session = self.get(session_id)
        if session.busy:
            _started(f"close {session_id}", session.close)
            self.forget(session_id)
        else:
            self.forget(session_id)
            session.close()

    def forget(self, session_id: str) -> None:
        """Make room for another session in the place of this one, which closes or has closed."""
        with self._lock:
            self._sessions.pop(session_id, None)
            self._made.notify_all()

    def _reap(self) -> None:
        while not self._stopped.wait(min(REAP_EVERY, self._idle_timeout)):
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if session is not None and session.idle_for(now) > self._idle_timeout:
                    self._let_go(session)

    def _let_go(self, session: Session) -> None:
        """Close a session that nobody uses, in a thread of its own; without one, the next time."""
        try:
            _started(f"close {session.id}", partial(session.close, "idle"))
        except RuntimeError as error:
            _log.warning("session not closed", extra={"session": session.id, "error": str(error)})
        else:
            self.forget(session.id)

    @property
    def stopped(self) -> bool:
        """Whether no more calls are taken."""
        return self._stopped.is_set()

    @property
    def under_way(self) -> int:
        """How many sessions are being made or have a call under way."""
        return sum(session is None or session.busy for session in list(self._sessions.values()))

    def stop(self) -> None:
        """Take no more sessions, and close those there are once their calls are over; the idle ones first."""
        self._stopped.set()
        there = [session for session in list(self._sessions.values()) if session is not None]
        for session in sorted(there, key=lambda session: session.busy):
            self._stop(session)

    def _stop(self, session: Session) -> None:
        session.close("stopped")
        self.forget(session.id)


def _started(name: str, work: Callable[[], Any]) -> threading.Thread:
    """A thread that runs; a machine may have no more of them."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
