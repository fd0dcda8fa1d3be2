"""Deferred Ctrl-C: the first SIGINT in a block is held back until its end, so that the block is done as a whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def interrupt_at_end(report: Callable[[str], Any], doing: str) -> Generator[None]:
    """Hold back Ctrl-C in the block, and say so; the second one interrupts what it is ``doing`` at once.

    Only the main thread gets signals; in others the block runs as it is.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: Any) -> None:
        if held:
            before(number, frame)
        held.append(number)
        with suppress(RuntimeError):  # the signal came in the middle of another write
            report(f"{doing} before the end; Ctrl-C again ends at once")

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(signal.SIGINT, None)
