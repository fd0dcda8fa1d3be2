"""Deferred Ctrl-C: the first SIGINT in a block is held back until its end, so that the block is done as a whole.

Where SIGINT is ignored, as in the background of a shell, the same is done with SIGTERM.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def interrupt_at_end(report: Callable[[str], Any], doing: str) -> Generator[None]:
    """Hold back Ctrl-C in the block, and say so; the second one interrupts what it is ``doing`` at once.

    SIGTERM needs no handler here where SIGINT has one, to which ``run_demo`` passes it on. Only the main thread gets
    signals; in others the block runs as it is.
    """
    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM)
    held_back = next((one for one in signals if is_main and callable(signal.getsignal(one))), None)
    if held_back is None:
        yield
        return
    before: Any = signal.getsignal(held_back)
    name = "Ctrl-C" if held_back is signal.SIGINT else held_back.name
    held: list[int] = []
    owner = os.getpid()

    def hold(number: int, frame: Any) -> None:
        if held or os.getpid() != owner:  # a forked child that has inherited this
            before(number, frame)
        held.append(number)
        with suppress(RuntimeError):  # the signal came in the middle of another write
            report(f"{doing} before the end; {name} again ends at once")

    signal.signal(held_back, hold)
    try:
        yield
    finally:
        signal.signal(held_back, before)
        if held:
            before(held_back, None)
