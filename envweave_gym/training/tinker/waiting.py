"""Waiting for a server: calls in threads that may be left behind, and one line about a server that is silent for long.

How long an answer of some kind takes is learned from those before it. A wait that is longer than that by
:data:`NOTICE_S` is reported, once for each silence, however many threads wait.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

NOTICE_S = 1.0
"""A silence is reported when it is this much longer than expected."""
FIRST_EXPECTED_S = 5.0
"""The expected time of the first answer of a kind: servers compile, load or queue at first."""


@dataclass
class _Kind:
    """The waits for one kind of answer."""

    expected: float
    heard: float
    """When the last answer came, or the first of the present waits began."""
    waiting: int = 0
    is_reported: bool = False


class Waits:
    """The waits of a run, by the kind of answer; safe for threads."""

    def __init__(
        self, report: Callable[[str], Any], peer: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Pass lines about silences of ``peer`` to ``report``."""
        self._report, self._peer, self._clock = report, peer, clock
        self._lock = threading.Lock()
        self._kinds: dict[str, _Kind] = {}

    @contextmanager
    def waiting(
        self, what: str, expected: float = FIRST_EXPECTED_S
    ) -> Generator[Callable[[], float], None, None]:
        """Wait for ``what`` in the block, which calls the yielded function from time to time.

        That function reports a silence, and returns the seconds since the block began.
        """
        began = self._clock()
        with self._lock:
            kind = self._kinds.setdefault(what, _Kind(expected, began))
            if not kind.waiting:
                kind.heard = began
            kind.waiting += 1

        def look() -> float:
            self._look(what, kind)
            return self._clock() - began

        try:
            yield look
        finally:
            with self._lock:
                now = self._clock()
                kind.expected = max(kind.expected, now - kind.heard)
                kind.heard, kind.is_reported = now, False
                kind.waiting -= 1

    def _look(self, what: str, kind: _Kind) -> None:
        with self._lock:
            silence = self._clock() - kind.heard
            if kind.is_reported or silence <= kind.expected + NOTICE_S:
                return
            kind.is_reported = True
        self._report(f"waiting for {self._peer}: {what} ({silence:.0f} s so far)")


def print_line(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread that may be left behind, and return the future of its result."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again by result()
            future.set_exception(error)

    threading.Thread(target=run, name="Tinker call", daemon=True).start()
    return future


def failure_within(function: Callable[[], Any], seconds: float) -> str | None:
    """Call a function that may wait for a server; return ``None``, or why it did not succeed within ``seconds``."""
    try:
        in_thread(function).result(timeout=seconds)
    except FutureTimeout:
        return f"the server did not answer within {seconds:g} s"
    except Exception as error:  # noqa: BLE001 - the caller reports it
        return str(error) or type(error).__name__
    return None
