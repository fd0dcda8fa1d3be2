"""File locks (``flock``) between processes of one user; a lock ends with its process at the latest."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from envweave_gym.core.faults import NotAvailable

LOCK_TIMEOUT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1


@contextmanager
def file_lock(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Generator[None]:
    """Hold the lock on a file in the block; raise ``NotAvailable`` if it is not free after ``timeout_s``.

    The file is created if it is missing.
    """
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while (lock := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise NotAvailable(
                f"another process of this user has held {path} for {timeout_s:g} s; "
                f"find it with 'fuser {path}' and end it"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    try:
        yield
    finally:
        unlock(lock)


def try_lock(path: Path) -> int | None:
    """Lock a file, created if missing; return the descriptor that holds the lock, or ``None`` if it is taken."""
    lock = _opened(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def unlock(lock: int) -> None:
    """Release the lock that the descriptor ``lock`` of :func:`try_lock` holds, and close the descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
    os.close(lock)


def create_lock_file(path: Path, mode: int) -> None:
    """Create a lock's file in advance, for processes that may not write to its folder."""
    lock = _opened(path)
    os.fchmod(lock, mode)  # whatever the umask
    os.close(lock)


def user_folder() -> Path:
    """Return a folder that only this user may write to: ``XDG_RUNTIME_DIR``, or else a temporary folder."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and _is_private(Path(given)):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / f"envweave-{os.getuid()}"
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        if not _is_private(folder):
            raise NotAvailable(
                f"{folder} is not a folder of this user alone, which locks are kept in; remove it, or name "
                "another in XDG_RUNTIME_DIR"
            ) from None
    return folder


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _opened(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)  # containers see the files of the host read-only
