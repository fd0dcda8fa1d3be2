"""Log of the last replies of a session, limited in size, for listeners of its event stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

Entry = tuple[int, bytes]
"""Number of a call that was executed, and its reply frame."""


class EventStreamLog:
    """Queue of replies that drops the oldest when all together have more than ``size`` bytes.

    The limit is an eighth of that until somebody listens, because most sessions never have a listener. The
    newest reply always stays: the session retains it anyway. :meth:`add` is called in every step and never
    waits; listeners take what is there and are woken when there is more.
    """

    def __init__(self, size: int) -> None:
        self.closed = False
        self._size, self._limit, self._held = size, size // 8, 0
        self._entries: deque[Entry] = deque()
        self._listeners: tuple[threading.Event, ...] = ()
        self._lock = threading.Lock()

    def add(self, number: int, reply: bytes) -> None:
        """Append the reply to a call that was executed."""
        entries = self._entries
        entries.append((number, reply))
        self._held += len(reply)
        while self._held > self._limit and len(entries) > 1:
            self._held -= len(entries.popleft()[1])
        for listener in self._listeners:
            listener.set()

    def since(self, number: int) -> list[Entry]:
        """Return the retained replies to the calls after ``number``."""
        return [entry for entry in tuple(self._entries) if entry[0] > number]

    def close(self) -> None:
        """Wake the listeners for the last time, because nothing more will come."""
        self.closed = True
        for listener in self._listeners:
            listener.set()

    @contextmanager
    def listener(self) -> Generator[threading.Event]:
        """Yield an event that is set whenever there are new replies; clear it before reading them."""
        more = threading.Event()
        with self._lock:
            self._limit = self._size
            self._listeners += (more,)
        try:
            yield more
        finally:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not more)
