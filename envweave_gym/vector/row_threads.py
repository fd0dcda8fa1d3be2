"""Calls of a vector's rows in a limited number of threads.

They are for rows whose work is done by other processes, so that a row's thread only waits. The threads end with
each call of the vector, so a vector that is closed, forked or pickled has no threads.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

MOST_AT_ONCE = min(64, max(16, 4 * (os.cpu_count() or 1)))
"""Limit of threads of one vector: more programs at once would share the cores and exceed their time limits."""
_ENDING_S = 2.0
"""Time for interrupted rows to end before the interruption is raised."""


class RowThreads:
    """Thread pool for one call of a vector: takes the calls of rows from a queue, stores results and exceptions."""

    def __init__(self, calls: Mapping[int, Callable[[], Any]]) -> None:
        """``calls`` maps the index of a row to its call."""
        self._rows, self._queue = list(calls), deque(calls.items())
        self._results: dict[int, Any] = {}
        self._errors: dict[int, BaseException] = {}
        self._running: set[int] = set()
        self._ended = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def run(self, end: Callable[[int], None]) -> dict[int, Any]:
        """Return the result of each row; if any raises, wait for all and raise the error of the first row.

        If the waiting thread is interrupted, no further row begins, and ``end(row)`` is called for rows in
        progress. Afterwards :meth:`running` returns the rows that continue nevertheless.
        """
        try:
            self._start(min(len(self._queue), MOST_AT_ONCE))
            for _ in self._threads:
                self._ended.acquire()  # not join(): an interrupted join may take the thread for finished
        except BaseException:
            self._queue.clear()
            for row in self.running():
                end(row)
            until = time.monotonic() + _ENDING_S
            for _ in self._threads:
                self._ended.acquire(timeout=max(0.0, until - time.monotonic()))
            raise
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[min(self._errors)]
        return {row: self._results[row] for row in self._rows}

    def _start(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name="vector-row", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads: the threads so far do the work
                break
            self._threads.append(thread)
        if not self._threads:
            self._take_all()

    def _work(self) -> None:
        try:
            self._take_all()
        finally:
            self._ended.release()

    def _take_all(self) -> None:
        while True:
            try:
                row, call = self._queue.popleft()
            except IndexError:
                return
            self._running.add(row)
            try:
                self._results[row] = call()
            except BaseException as error:  # noqa: BLE001 - it is raised where the rows are waited for
                self._errors[row] = error
            finally:
                self._running.discard(row)

    def running(self) -> list[int]:
        """Return the rows whose call has begun and not ended, in order."""
        return sorted(self._running.copy())
