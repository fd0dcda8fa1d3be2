"""One after the other: what only one thread of one process of a user may do at a time."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from envweave_gym.core.faults import NotAvailable

_PATIENCE = 30.0
_PAUSE = 0.01
_held = threading.local()


@contextmanager
def alone(what: str) -> Generator[None]:
    """No other thread or process of this user is in a block of the same name meanwhile."""
    path = own_folder() / f"envweave-{what}.lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _wait_for(lock, path)
        before, _held.is_alone = is_alone(), True
        try:
            yield
        finally:
            _held.is_alone = before
            fcntl.flock(lock, fcntl.LOCK_UN)  # who was forked meanwhile has it open too
    finally:
        os.close(lock)


def is_alone() -> bool:
    """Whether this thread is in such a block."""
    return getattr(_held, "is_alone", False)


def _wait_for(lock: int, path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NotAvailable(
                    f"another process of this user has held {path} for {_PATIENCE:g} s; "
                    f"find it with 'fuser {path}' and end it"
                ) from None
        time.sleep(_PAUSE)


def own_folder() -> Path:
    """A folder that nobody else may write to."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and _is_ours(Path(given)):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / f"envweave-{os.getuid()}"
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not _is_ours(folder):
            raise NotAvailable(
                f"{folder} is not a folder of this user alone, which locks are kept in; remove it, or name "
                "another in XDG_RUNTIME_DIR"
            ) from None
    return folder


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
