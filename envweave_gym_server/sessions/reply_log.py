"""The last replies of a session, up to a size, for listeners of its event stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

Entry = tuple[int, bytes]
"""The number of a call that was done, and the frame of its reply."""


class ReplyLog:
    """Drops the oldest replies once all together have more than ``size`` bytes, or an eighth of it.

    The limit is an eighth until somebody listens, because most sessions never have a listener. The newest
    reply always stays: the session retains it anyway. :meth:`add` is on the path of every step and never
    waits; listeners take what is there and are woken when there is more.
    """

    def __init__(self, size: int) -> None:
        self.closed = False
        self._size, self._limit, self._held = size, size // 8, 0
        self._entries: deque[Entry] = deque()
        self._listeners: tuple[threading.Event, ...] = ()
        self._lock = threading.Lock()

    def add(self, number: int, reply: bytes) -> None:
        """Append the reply to a call that was done."""
        entries = self._entries
        entries.append((number, reply))
        self._held += len(reply)
        while self._held > self._limit and len(entries) > 1:
            self._held -= len(entries.popleft()[1])
        for listener in self._listeners:
            listener.set()

    def since(self, number: int) -> list[Entry]:
        """The retained replies to the calls after ``number``."""
        return [entry for entry in tuple(self._entries) if entry[0] > number]

    def close(self) -> None:
        """Wake the listeners for the last time: nothing more will come."""
        self.closed = True
        for listener in self._listeners:
            listener.set()

    @contextmanager
    def listener(self) -> Generator[threading.Event]:
        """An event that is set whenever there is more; clear it before you read."""
        more = threading.Event()
        with self._lock:
            self._limit = self._size
            self._listeners += (more,)
        try:
            yield more
        finally:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not more)
