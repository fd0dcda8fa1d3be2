"""A semaphore of evaluations for all processes of this user on this machine, also those in containers."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from envweave_gym.containers.host_slots import MOST, folder_of_slots, lock_slot
from envweave_gym.core.faults import AtCapacity, InvalidArgument, shown
from envweave_gym.os_support.file_lock import unlock
from envweave_gym.os_support.parent_process import end_with_parent

PATIENCE = 3600.0
"""Seconds that an evaluation waits for a slot."""
_PAUSE, _LONGEST_PAUSE = 0.02, 0.2


def check_at_once(at_once: object) -> None:
    """Refuse what is no limit."""
    if at_once is not None and (type(at_once) is not int or not 1 <= at_once <= MOST):
        raise InvalidArgument(
            f"at_once={shown(at_once)} is no number of evaluations; give an int from 1 to {MOST}, or None"
        )


@contextmanager
def turn(
    at_once: int | None = None, patience: float = PATIENCE, *, of: str = "evaluation"
) -> Generator[None]:
    """Wait until fewer evaluations, or others ``of`` one name, than that run: by default one for each core.

    A turn is a lock on a file, which the system gives back however its process ends. A worker process of a
    vector ends with its owner from now on.
    """
    end_with_parent()
    most = at_once or os.cpu_count() or 1
    lock = _taken(of, most, time.monotonic() + patience)
    if lock is None:
        raise AtCapacity(
            f"{most} {of}s have been running for {patience:g} s; wait, or allow more with at_once="
        )
    try:
        end_with_parent()  # another row of a killed owner has ended, and left its turn to this one
        yield
    finally:
        unlock(lock)


def _taken(of: str, most: int, deadline: float) -> int | None:
    pause, folder = _PAUSE, folder_of_slots(of)
    while True:
        for number in range(most):
            if (lock := lock_slot(folder, of, number)) is not None:
                return lock
        if time.monotonic() > deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)  # hundreds may wait, and each look is a call for each core
