"""A thread that runs the calls of one environment in turn, so that a slow environment holds up no other.

A thread pool of limited size would let the episodes of slow environments starve the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple[Future[Any], Callable[[], Any]]


class OwnThread:
    """A daemon thread that starts with the first call and ends with :meth:`end`.

    Environments that only work in the thread that made them work here too.
    """

    def __init__(self, name: str) -> None:
        self._name, self._jobs = name, SimpleQueue[_Job | None]()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Run ``function`` after the calls before it, and return the future of its result."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[_T] = Future()
        self._jobs.put((future, function))
        return future

    def end(self) -> None:
        """End the thread after the calls that wait."""
        if self._thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
                future.set_exception(error)
