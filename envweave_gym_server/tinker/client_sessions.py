"""Sessions of clients: each ``ServiceClient`` opens one, sends heartbeats, and closes it if its program does.

Models and samplers of a session are dropped when it ends, or when nothing was heard from it for a long time.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from envweave_gym_server.tinker.api_errors import NotFound

SILENT_S = 1800.0
"""A session without a heartbeat or a request for this time has ended; the SDK sends one every 10 s."""
MAX_ENDED = 1000
"""Ended sessions that are still listed."""


@dataclass
class ClientSession:
    """One session, and the reason for its end once it has ended."""

    session_id: str
    metadata: dict[str, str] | None = None
    display_name: str | None = None
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    last_heard: float = field(default_factory=time.monotonic)
    ended: dict[str, Any] | None = None

    def status(self) -> dict[str, Any]:
        """Return the SDK's description of the session's state."""
        return {"type": "active"} if self.ended is None else self.ended


class ClientSessions:
    """The table of sessions, by ID."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._lock = threading.Lock()
        self._by_id: dict[str, ClientSession] = {}

    def open(self, metadata: dict[str, str] | None, display_name: str | None) -> ClientSession:
        """Make a session."""
        session = ClientSession(secrets.token_hex(8), metadata, display_name)
        with self._lock:
            self._by_id[session.session_id] = session
        return session

    def touch(self, session_id: str) -> ClientSession:
        """Return an open session, and note the time of this sign of life; raise :class:`NotFound`."""
        session = self._by_id.get(session_id)
        if session is None:
            raise NotFound(
                f"session {session_id} is not known: the server was restarted; make another ServiceClient"
            )
        if session.ended is not None:
            raise NotFound(f"session {session_id} has ended; make another ServiceClient")
        session.last_heard = time.monotonic()
        return session

    def find(self, session_id: str) -> ClientSession | None:
        """Return a session, open or ended."""
        return self._by_id.get(session_id)

    def end(self, session_id: str, ended: dict[str, Any]) -> bool:
        """Mark a session as ended, and return whether it was open; the first reason stays."""
        with self._lock:
            session = self._by_id.get(session_id)
            if session is None or session.ended is not None:
                return False
            session.ended = ended
            over = [key for key, one in self._by_id.items() if one.ended is not None][:-MAX_ENDED]
            for key in over:
                del self._by_id[key]
            return True

    def silent(self) -> list[str]:
        """Return the open sessions from which nothing was heard for too long."""
        oldest = time.monotonic() - self._silent_s
        with self._lock:
            return [key for key, one in self._by_id.items() if one.ended is None and one.last_heard < oldest]

    def all(self) -> list[ClientSession]:
        """Return all sessions, the newest first."""
        with self._lock:
            return list(reversed(self._by_id.values()))
