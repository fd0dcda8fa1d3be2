"""Thread that answers the pings of idle WebSocket sessions.

Servers of OpenEnv ping every 20 seconds and hang up after 20 more without an answer, while a language model may think
for minutes between two steps. During a call the session answers pings itself. One thread serves all sessions of a
process, and ends when there are none.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol
from weakref import WeakSet

from envweave_gym.os_support.process_local import ProcessLocal

_LOOK_EVERY_S = 2.0
"""Seconds between two rounds; less than half of the shortest usual patience of servers."""
_log = logging.getLogger(__name__)


class Idle(Protocol):
    """A session that answers pings which have arrived since its last call."""

    def answer_pings(self) -> None:
        """Answer pings, unless a call is under way, which does that itself; never wait."""
        ...


class _Pings:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: WeakSet[Idle] = WeakSet()
        self._is_running, self._wakes = False, threading.Event()

    def add(self, session: Idle) -> None:
        with self._lock:
            self._sessions.add(session)
            if not self._is_running:
                threading.Thread(target=self._run, name="pings of OpenEnv sessions", daemon=True).start()
                self._is_running = True  # after the start, which may fail

    def discard(self, session: Idle) -> None:
        with self._lock:
            self._sessions.discard(session)
            if not self._sessions:
                self._wakes.set()  # the thread ends

    def _run(self) -> None:
        while True:
            self._wakes.wait(_LOOK_EVERY_S)
            with self._lock:
                self._wakes.clear()
                sessions = list(self._sessions)
                if not sessions:
                    self._is_running = False
                    return
            for number in range(len(sessions)):  # a variable of this loop would keep the last session
                try:
                    sessions[number].answer_pings()
                except Exception:  # noqa: BLE001 - the other sessions need the thread
                    _log.exception("pings of %r were not answered", sessions[number])
            sessions.clear()


_pings = ProcessLocal(_Pings)


def answer_while_idle(session: Idle) -> None:
    """Have the pings of a session answered between its calls, until :func:`forget` or its garbage collection."""
    _pings.value.add(session)


def forget(session: Idle) -> None:
    """Stop answering the pings of a session."""
    _pings.value.discard(session)
