"""Thread that makes and plays one environment, whichever thread calls.

An OpenGL context, an event loop or a database connection belongs to the thread that made it. The requests of a
session arrive in several threads: without this, MuJoCo renders black pictures after a reconnect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class OwnThread:
    """Daemon thread that runs one call at a time, and passes result or exception to the calling thread.

    It is a daemon thread, because a call that hangs must not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._adding, self._is_closed = threading.Lock(), False
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=f"environment {name}", daemon=True).start()

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``work`` in the thread; return its result or raise its exception.

        Raise ``RuntimeError`` if the thread was closed.
        """
        outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        with self._adding:  # a call behind the last entry of the queue would wait forever
            if self._is_closed:
                raise RuntimeError("the thread of this environment has ended")
            self._calls.put((lambda: work(*arguments), outcome))
        result, error = outcome.get()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error, outcome  # its traceback would hold this frame, and the frame it

    def close(self) -> None:
        """End the thread after its queued calls."""
        with self._adding:
            self._is_closed = True
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, outcome = call
            try:
                outcome.put((work(), None))
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                outcome.put((None, error))
            del call, work, outcome
