"""Table of a server's sessions by id, and the thread that closes those whose lease has expired."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from envweave_gym.core.faults import AtCapacity, shown
from envweave_gym.wire.messages import Create
from envweave_gym_server.core.errors import ClientLeft, NoSession
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.isolation.hosts import Host
from envweave_gym_server.sessions.session import CLIENT_CHECK_S, Left, Session, stays
from envweave_gym_server.sessions.session_protocol import CREATED, STOPPING, SlotState, TableCore

REAP_EVERY_S = 1.0
_MAKING_S = 600.0
"""Longest wait for a session that the same create, over another connection, is making."""
_log = logging.getLogger(__name__)


class Sessions:
    """Table of sessions: creates, finds and closes them, under one lock around :class:`TableCore`."""

    def __init__(
        self,
        open_host: Callable[[Create], Host],
        *,
        most: int,
        most_environments: int = 1 << 17,
        idle_timeout: float,
        metrics: Metrics | None = None,
        log_size: int = 0,
    ) -> None:
        self._open_host, self._idle_timeout = open_host, idle_timeout
        self._metrics, self._log_size = metrics or Metrics(), log_size
        self._core = TableCore(most, most_environments)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._made = threading.Condition(self._lock)
        self._reaper: threading.Thread | None = None
        self._stopped = threading.Event()
        self._or_lost = ""

    def __len__(self) -> int:
        return len(self._core)

    def others_ended(self, why: str) -> None:
        """Mention in errors about unknown sessions that the previous server process has ended, and why."""
        self._or_lost = f", or ended with the process of this server that had it: {why}"

    def get(self, session_id: str) -> Session:
        """Return the session with this id; raise ``NoSession`` if there is none."""
        if self._core.stopping:
            raise AtCapacity(STOPPING)
        session = self._sessions.get(session_id)
        if session is None:
            why = f"it never was, was closed or was idle too long{self._or_lost}"
            raise NoSession(f"there is no session {shown(session_id)}: {why}")
        return session

    def create(
        self, session_id: str, create: Create, frame: bytes, left: Left = stays
    ) -> tuple[Session, bytes]:
        """Create a session, or find the one that the same create has made; return it and the reply to the create.

        ``left`` returns whether the client has disconnected.
        """
        with self._lock:
            slot = self._reserve(session_id, rows_of(create), left)
            known = self._sessions.get(session_id)
        if slot is SlotState.OPEN and known is not None:
            return known, known.call(create, frame, left)
        try:
            host = self._open_host(create)
        except BaseException:
            self._metrics.refused(Create)
            self.forget(session_id)
            raise
        session = Session(session_id, create, frame, host, self._metrics, self._log_size)
        with self._lock:
            self._sessions[session_id] = session
            self._core.opened(session_id)
            self._made.notify_all()
        _log.info("session created", extra={"session": session_id, "env": create.env_id, "api": create.api})
        if self._core.stopping:
            self._stop(session)
        return session, CREATED

    def _reserve(self, session_id: str, rows: int, left: Left) -> SlotState:
        """Look a session up or reserve its slots; if the same create is being executed, wait for the outcome."""
        if self._reaper is None:  # not before: a server forks after it was built, and loses its threads
            self._reaper = _started("reaper", self._reap)
        until = time.monotonic() + _MAKING_S
        while (slot := self._core.create(session_id, rows)) is SlotState.BEING_MADE:
            if left():
                raise ClientLeft(f"the client that waited for session {session_id} has left")
            if time.monotonic() > until:
                raise AtCapacity(f"session {session_id!r} is still being made; ask again")
            self._made.wait(CLIENT_CHECK_S)
        return slot

    def close(self, session_id: str) -> None:
        """Close one session; if a call is running, a thread waits for its end and then closes the session."""
        session = self.get(session_id)
        if session.busy:
            # The thread first: if none can be started, the session stays in the table.
            _started(f"close {session_id}", partial(session.close, "closed", self._idle_timeout))
            self.forget(session_id)
        else:
            self.forget(session_id)
            session.close()

    def forget(self, session_id: str) -> None:
        """Free the slots of a session that closes or has closed."""
        with self._lock:
            self._sessions.pop(session_id, None)
            self._core.release(session_id)
            self._made.notify_all()

    def _reap(self) -> None:
        while not self._stopped.wait(min(REAP_EVERY_S, self._idle_timeout)):
            for session in list(self._sessions.values()):
                if session.idle_s() > self._idle_timeout:
                    self._expire(session)

    def _expire(self, session: Session) -> None:
        """Close a session in a thread of its own; if no thread can be started, the next round tries again."""
        try:
            _started(f"close {session.id}", partial(session.close, "idle", self._idle_timeout))
        except RuntimeError as error:
            _log.warning("session not closed", extra={"session": session.id, "error": str(error)})
        else:
            self.forget(session.id)

    @property
    def environments(self) -> int:
        """Number of environments of all sessions together."""
        return self._core.environments

    @property
    def stopped(self) -> bool:
        """Whether all calls are refused."""
        return self._core.stopping

    @property
    def under_way(self) -> int:
        """Number of sessions that are being made or have a running call."""
        return self._core.being_made + sum(session.busy for session in list(self._sessions.values()))

    def stop(self) -> None:
        """Refuse all calls from now on, and close every session after its running call, the idle ones first."""
        self._core.stopping = True
        self._stopped.set()
        for session in sorted(self._sessions.values(), key=lambda session: session.busy):
            self._stop(session)

    def _stop(self, session: Session) -> None:
        session.close("stopped")
        self.forget(session.id)


def rows_of(create: Create) -> int:
    """Return the number of environments that a client requests; an invalid number is refused when they are made."""
    rows = create.kwargs.get("num_envs", 1)
    is_number = isinstance(rows, int | np.integer) and not isinstance(rows, bool | np.timedelta64)
    return max(int(rows), 1) if is_number else 1


def _started(name: str, work: Callable[[], Any]) -> threading.Thread:
    """Start and return a daemon thread; raise ``RuntimeError`` if the machine has no more threads."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
