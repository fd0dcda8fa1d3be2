"""A semaphore, made of file locks, that limits concurrent evaluations and commands of all processes of this user.

It counts those in containers too, as they mount the folder of the lock files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from envweave_gym.containers.host_slots import MAX_SLOTS, folder_of_slots, lock_slot
from envweave_gym.core.arguments import check_int
from envweave_gym.core.faults import AtCapacity
from envweave_gym.os_support.file_lock import unlock
from envweave_gym.os_support.parent_process import end_with_parent

WAIT_TIMEOUT_S = 3600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2


def check_at_once(at_once: object) -> None:
    """Raise ``InvalidArgument`` unless ``at_once`` is an int from 1 to :data:`MAX_SLOTS`, or None."""
    check_int("at_once", at_once, "no number of evaluations", 1, MAX_SLOTS, or_none=True)


@contextmanager
def slot(
    at_once: int | None = None, timeout: float = WAIT_TIMEOUT_S, *, of: str = "evaluation"
) -> Generator[None]:
    """Context manager that holds one of ``at_once`` slots of the semaphore named ``of``; ``None``: one for each core.

    Wait for a free slot, and raise ``AtCapacity`` after ``timeout`` seconds. A slot is a file lock, so the kernel
    releases it however the process ends. In a worker of ``AsyncVectorEnv`` the call has a lasting side effect: the
    worker is killed when its parent ends. Otherwise an orphan would hold its slot while others wait.
    """
    end_with_parent()
    limit = at_once or os.cpu_count() or 1
    lock = _lock_any(of, limit, time.monotonic() + timeout)
    if lock is None:
        raise AtCapacity(
            f"{limit} {of}s have been running for {timeout:g} s; wait, or allow more with at_once="
        )
    try:
        end_with_parent()  # the slot may come from another row of an owner that was killed
        yield
    finally:
        unlock(lock)


def _lock_any(of: str, limit: int, deadline: float) -> int | None:
    """Lock a free slot of the semaphore ``of`` and return its descriptor; ``None`` if there is none in time."""
    pause, folder = _FIRST_PAUSE_S, folder_of_slots(of)
    while True:
        for number in range(limit):
            if (lock := lock_slot(folder, of, number)) is not None:
                return lock
        if time.monotonic() > deadline:
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)  # hundreds may wait, and each try costs a call per core
