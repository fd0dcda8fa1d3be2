"""Runs the tools of programs in threads that nothing waits for: a tool may take for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

_IDLE = 5.0
"""So many seconds a thread waits for the next tool."""
_Work = tuple[Callable[..., None], tuple[Any, ...]]


class Threads:
    """As many as there are tools at a time, used again for a while."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = 0
        """So many wait for work that is not in the queue yet."""
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call this in a thread."""
        with self._lock:
            self._work.put((function, arguments))
            if self._idle:
                self._idle -= 1
                return
        threading.Thread(target=self._run, name="tool", daemon=True).start()

    def close(self) -> None:
        """Let those end that have nothing to do."""
        with self._lock:
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0

    def _run(self) -> None:
        while (work := self._next()) is not None:
            function, arguments = work
            function(*arguments)
            del work, function, arguments
            with self._lock:
                self._idle += 1

    def _next(self) -> _Work | None:
        while True:
            try:
                return self._work.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._work.empty():
                        self._idle -= 1
                        return None
