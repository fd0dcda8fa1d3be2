"""Sessions: one environment each, its lock, its last call and reply, and how long it is kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from envweave_gym.faults import AtCapacity, EnvweaveError
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

REAP_EVERY = 1.0
"""So many seconds pass between two looks for sessions whose lease is over."""


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

    def __init__(self, session_id: str, create: Create, frame: bytes, host: Host) -> None:
        self.id, self.env_id, self.api = session_id, create.env_id, create.api
        self.committed = 0
        self.attached = 0
        self.closed = False
        self.used = time.monotonic()
        self._host = host
        self._lock = threading.Lock()
        self._last_frame, self._last_reply = frame, encode(Created(0))

    def call(self, message: Call, frame: bytes) -> bytes:
        """The frame of the reply to a message, whose frame is ``frame``."""
        with self._lock:
            try:
                return self._call(message, frame)
            finally:
                self.used = time.monotonic()

    def _call(self, message: Call, frame: bytes) -> bytes:
        if self.closed:
            raise NoSession(f"session {self.id} is closed; create another")
        if isinstance(message, Ask):
            return self._host.answer(message, frame)
        if isinstance(message, Close):
            self._shut()
            return encode(Answer(message.number, None))
        number = number_of(message)
        if number == self.committed and frame == self._last_frame:
            return self._last_reply
        if number != self.committed + 1 or not isinstance(message, Reset | Step):
            return encode(self._conflict(number))
        reply, done = self._host.do(message, frame)
        if done:
            self.committed, self._last_frame, self._last_reply = number, frame, reply
        return reply

    def _conflict(self, number: int) -> Refused:
        known = self.committed
        reason = "another call had that number" if number == known else f"the next call is {known + 1}"
        told = f"call {number} of session {self.id} is refused: {reason}"
        return Refused(number, "Conflict", told, known)

    def attach(self) -> None:
        """Keep the session for as long as the connection that calls this is there."""
        with self._lock:
            self.attached += 1

    def detach(self) -> None:
        """Let the lease run again, from now on."""
        self.attached -= 1
        self.used = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    def idle_for(self, now: float) -> float:
        """How many seconds nobody has used it, 0 while somebody does."""
        return 0.0 if self.attached or self.busy else now - self.used

    def close(self) -> None:
        """Close the environment, once the call that is under way is over."""
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        if not self.closed:
            self.closed = True
            self._host.close()


class Sessions:
    """The sessions of a server by id; a thread of its own closes those whose lease is over."""

    def __init__(self, open_host: Callable[[Create], Host], *, most: int, idle_timeout: float) -> None:
        self._open_host, self._most, self._idle_timeout = open_host, most, idle_timeout
        self._sessions: dict[str, Session | None] = {}
        self._lock = threading.Lock()
        self._reaper: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session:
        """The session of this id."""
        session = self._sessions.get(session_id)
        if session is None:
            raise NoSession(
                f"there is no session {session_id}: it never was, was closed or was idle too long"
            )
        return session

    def create(self, session_id: str, create: Create, frame: bytes) -> tuple[Session, bytes]:
        """A new session and the reply to its first call; or the one that the same call has made before."""
        with self._lock:
            known = self._sessions.get(session_id)
            if known is None:
                self._reserve(session_id)
        if known is not None:
            return known, known.call(create, frame)
        try:
            session = Session(session_id, create, frame, self._open_host(create))
        except BaseException:
            with self._lock:
                del self._sessions[session_id]
            raise
        self._sessions[session_id] = session
        return session, encode(Created(0))

    def _reserve(self, session_id: str) -> None:
        if session_id in self._sessions:
            raise AtCapacity(f"session {session_id!r} is being made; ask again")
        if self._stopped.is_set():
            raise AtCapacity("the server is stopping; use another")
        if len(self._sessions) >= self._most:
            count = f"{len(self._sessions)} of {self._most}"
            raise AtCapacity(f"{count} sessions are open; close one or come again")
        self._sessions[session_id] = None
        if self._reaper is None:
            self._reaper = threading.Thread(target=self._reap, name="reaper", daemon=True)
            self._reaper.start()

    def close(self, session_id: str) -> None:
        """Close one session; where a call is under way, once that is over, which nobody waits for."""
        session = self.get(session_id)
        self.forget(session_id)
        if session.busy:
            threading.Thread(target=session.close, name=f"close {session_id}", daemon=True).start()
        else:
            session.close()

    def forget(self, session_id: str) -> None:
        """Make room for another session in the place of this one, which closes or has closed."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def _reap(self) -> None:
        while not self._stopped.wait(min(REAP_EVERY, self._idle_timeout)):
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if session is not None and session.idle_for(now) > self._idle_timeout:
                    self._close_quietly(session)

    def _close_quietly(self, session: Session) -> None:
        self.forget(session.id)
        session.close()

    def stop(self) -> None:
        """Take no more sessions, and close those there are once their calls are over."""
        self._stopped.set()
        for session in list(self._sessions.values()):
            if session is not None:
                self._close_quietly(session)
