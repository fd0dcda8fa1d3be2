"""What a session has done lately, for those who look on: the last replies, as far as they fit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

Done = tuple[int, bytes]
"""The number of a call that was done, and the frame of its reply."""


class EventLog:
    """The replies of the last calls; the oldest are dropped once all have more than ``size`` bytes.

    It is an eighth of that until somebody listens: most sessions are never looked at. The newest is always
    kept: the session keeps it anyway. :meth:`add` is on the path of every step and waits for nobody; who
    listens takes what is there and is woken when there is more.
    """

    def __init__(self, size: int) -> None:
        self.closed = False
        self._size, self._most, self._held = size, size // 8, 0
        self._replies: deque[Done] = deque()
        self._listeners: tuple[threading.Event, ...] = ()
        self._lock = threading.Lock()

    def add(self, number: int, reply: bytes) -> None:
        """Keep the reply to a call that was done."""
        replies = self._replies
        replies.append((number, reply))
        self._held += len(reply)
        while self._held > self._most and len(replies) > 1:
            self._held -= len(replies.popleft()[1])
        for listener in self._listeners:
            listener.set()

    def since(self, number: int) -> list[Done]:
        """The kept calls after the one with this number."""
        return [done for done in tuple(self._replies) if done[0] > number]

    def close(self) -> None:
        """Say that nothing more will come."""
        self.closed = True
        for listener in self._listeners:
            listener.set()

    @contextmanager
    def listener(self) -> Generator[threading.Event]:
        """What is set whenever there is more; clear it before looking."""
        more = threading.Event()
        with self._lock:
            self._most = self._size
            self._listeners += (more,)
        try:
            yield more
        finally:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not more)
