"""Ends the process of a vector's row with the process that steps the vector, also in mid-step."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.process import BaseProcess

_EVERY = 0.25
"""So many seconds pass before it is looked again."""
_watched = 0
"""The process that is watched over; one that was forked from it is not."""


def end_with_the_parent() -> None:
    """End this process soon after the one that started it, where it is a daemon of multiprocessing.

    A row of ``AsyncVectorEnv`` hears of the death of its parent when it waits for the next action; a program
    that runs meanwhile would keep it, and with it the sandbox, until its time is up.
    """
    global _watched
    parent = multiprocessing.parent_process()
    if parent is None or not multiprocessing.current_process().daemon or _watched == os.getpid():
        return
    _watched = os.getpid()
    arguments = (parent, os.getppid())
    threading.Thread(target=_watch, args=arguments, name="parent-watch", daemon=True).start()


def _watch(parent: BaseProcess, above: int) -> None:
    """``above`` is the parent too, or a server that forks and ends with it; both tell of a death."""
    while os.getppid() == above and parent.is_alive():
        time.sleep(_EVERY)
    os._exit(1)
