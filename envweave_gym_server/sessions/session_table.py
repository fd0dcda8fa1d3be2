"""The sessions of a server: how many there may be, and how long each is kept."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from envweave_gym.core.faults import AtCapacity, InvalidArgument, shown
from envweave_gym.wire.messages import Create, Created, encode
from envweave_gym_server.core.errors import ClientLeft, NoSession
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.environments.host import Host
from envweave_gym_server.sessions.session import LOOK_EVERY, Left, Session, stays

_MAKING = 600.0
"""So many seconds somebody waits for a session that another is making."""

REAP_EVERY = 1.0
"""So many seconds pass between two looks for sessions whose lease is over."""

SESSION_ID = r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}"
"""The ids of sessions; what stands for a directory in a path never reaches a server."""

_STOPPING = "the server is stopping; use another"
_log = logging.getLogger(__name__)


class Sessions:
    """The sessions of a server by id; a thread of its own closes those whose lease is over."""

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
        self._open_host, self._most, self._idle_timeout = open_host, most, idle_timeout
        self._metrics, self._log_size = metrics or Metrics(), log_size
        self._most_environments = most_environments
        self._sessions: dict[str, Session | None] = {}
        self._rows: dict[str, int] = {}
        """How many environments each session has."""
        self._lock = threading.Lock()
        self._made = threading.Condition(self._lock)
        self._reaper: threading.Thread | None = None
        self._stopped = threading.Event()
        self._or = ""

    def __len__(self) -> int:
        return len(self._sessions)

    def others_ended(self, why: str) -> None:
        """Another process had sessions here before this one, and has ended with them."""
        self._or = f", or ended with the process of this server that had it: {why}"

    def get(self, session_id: str) -> Session:
        """The session of this id."""
        if self._stopped.is_set():
            raise AtCapacity(_STOPPING)
        session = self._sessions.get(session_id)
        if session is None:
            why = f"it never was, was closed or was idle too long{self._or}"
            raise NoSession(f"there is no session {shown(session_id)}: {why}")
        return session

    def create(
        self, session_id: str, create: Create, frame: bytes, left: Left = stays
    ) -> tuple[Session, bytes]:
        """A new session and the reply to its first call; or the one that the same call has made before."""
        with self._lock:
            self._wait_until_made(session_id, left)
            known = self._sessions.get(session_id)
            if known is None:
                self._reserve(session_id, rows_of(create))
        if known is not None:
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
            self._made.notify_all()
        _log.info("session created", extra={"session": session_id, "env": create.env_id, "api": create.api})
        if self._stopped.is_set():
            self._stop(session)
        return session, encode(Created(0))

    def _wait_until_made(self, session_id: str, left: Left) -> None:
        """A create that comes again while the first is under way gets what that comes to."""
        until = time.monotonic() + _MAKING
        while session_id in self._sessions and self._sessions[session_id] is None:
            if left():
                raise ClientLeft(f"the client that waited for session {session_id} has left")
            if time.monotonic() > until:
                raise AtCapacity(f"session {session_id!r} is still being made; ask again")
            self._made.wait(LOOK_EVERY)

    def _reserve(self, session_id: str, rows: int) -> None:
        if not re.fullmatch(SESSION_ID, session_id):
            raise InvalidArgument(
                f"{shown(session_id)} is no id of a session; take up to 128 letters, digits and . _ -"
            )
        if self._stopped.is_set():
            raise AtCapacity(_STOPPING)
        if len(self._sessions) >= self._most:
            count = f"{len(self._sessions)} of {self._most}"
            raise AtCapacity(f"{count} sessions are open; close one or come again")
        most, there = self._most_environments, self.environments
        rows = rows if rows <= most else 0  # a vector that never fits is refused when it is to be made
        if there + rows > most:
            raise AtCapacity(
                f"{there} of {most} environments are open, and {rows} more do not fit; "
                "close some or come again"
            )
        if self._reaper is None:  # not before: a server forks when it has been made, and loses its threads
            self._reaper = _started("reaper", self._reap)
        self._sessions[session_id], self._rows[session_id] = None, rows

    def close(self, session_id: str) -> None:
        """Close one session; where a call is under way, once that is over, which nobody waits for."""
        session = self.get(session_id)
        if session.busy:
            _started(f"close {session_id}", partial(session.close, "closed", self._idle_timeout))
            self.forget(session_id)
        else:
            self.forget(session_id)
            session.close()

    def forget(self, session_id: str) -> None:
        """Make room for another session in the place of this one, which closes or has closed."""
        with self._lock:
            self._sessions.pop(session_id, None)
            self._rows.pop(session_id, None)
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
            _started(f"close {session.id}", partial(session.close, "idle", self._idle_timeout))
        except RuntimeError as error:
            _log.warning("session not closed", extra={"session": session.id, "error": str(error)})
        else:
            self.forget(session.id)

    @property
    def environments(self) -> int:
        """How many environments there are in all sessions together."""
        return sum(list(self._rows.values()))

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


def rows_of(create: Create) -> int:
    """How many environments a client asks for; whether it may have them is seen when they are made."""
    rows = create.kwargs.get("num_envs", 1)
    is_number = isinstance(rows, int | np.integer) and not isinstance(rows, bool | np.timedelta64)
    return max(int(rows), 1) if is_number else 1


def _started(name: str, work: Callable[[], Any]) -> threading.Thread:
    """A thread that runs; a machine may have no more of them."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
