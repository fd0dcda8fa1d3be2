"""Locks with lock files that disappear: shared ones (leases) of who uses a folder, exclusive ones of who changes it.

A lock belongs to an open file. Processes that inherit its descriptor hold it too, and it ends with the last of them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from envweave_gym.core.faults import NotAvailable

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2


def take_lease(path: Path, timeout_s: float) -> int | None:
    """Lock a file for use, shared with others, and return the descriptor; ``None`` if there is no such file.

    Raise ``NotAvailable`` if another process holds it exclusively for ``timeout_s`` seconds.
    """
    with suppress(FileNotFoundError):
        return _locked(path, os.O_RDWR, fcntl.LOCK_SH, timeout_s)
    return None


def release(lock: int) -> None:
    """Close the descriptor of a lock; the lock ends unless another process has inherited the descriptor."""
    os.close(lock)


@contextmanager
def exclusive(path: Path, timeout_s: float) -> Generator[int]:
    """Hold a file's lock alone in the block, which gets the descriptor; the file is created if it is missing.

    The block, or :func:`removed`, may remove the file. Raise ``NotAvailable`` after ``timeout_s`` seconds.
    """
    lock = _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, timeout_s)
    try:
        yield lock
    finally:
        _unlock(lock)


@contextmanager
def exclusive_while_making(path: Path, timeout_s: float) -> Generator[int]:
    """Hold a file's lock alone in the block, and remove the file at its end."""
    with exclusive(path, timeout_s) as lock:
        try:
            yield lock
        finally:
            path.unlink(missing_ok=True)


def try_exclusive(path: Path) -> int | None:
    """Lock a file alone and return the descriptor, or return ``None`` if another process uses it."""
    try:
        return _locked(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX, 0.0)
    except NotAvailable:
        return None


def unlock(lock: int) -> None:
    """End a lock of :func:`try_exclusive`."""
    _unlock(lock)


def _unlock(lock: int) -> None:
    fcntl.flock(
        lock, fcntl.LOCK_UN
    )  # a process of uv that was killed a moment ago may still have the descriptor
    os.close(lock)


def _locked(path: Path, flags: int, kind: int, timeout_s: float) -> int:
    deadline, pause = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while (lock := _try(path, flags, kind)) is None:
        if time.monotonic() >= deadline:
            raise NotAvailable(
                f"another process has held {path} for {timeout_s:g} s; find it with 'fuser {path}'"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    return lock


def _try(path: Path, flags: int, kind: int) -> int | None:
    """Return a locked descriptor; ``None`` if another process has it, or its last holder has just removed the file."""
    lock = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
        if _is_at(lock, path):
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_at(lock: int, path: Path) -> bool:
    """Return whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False
