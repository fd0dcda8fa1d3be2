"""File locks (``flock``) between processes of one user; a lock ends with its process at the latest.

A lock belongs to an open file: processes that inherit its descriptor hold it too, and it ends with the last of them.
The holder of an exclusive lock may remove its file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from envweave_gym.core.faults import NotAvailable

LOCK_TIMEOUT_S = 30.0
_SILENCE_S = 1.0
"""Time after which a wait is reported on stderr."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.1


@contextmanager
def file_lock(path: Path, timeout_s: float = LOCK_TIMEOUT_S, *, holder_does: str = "") -> Generator[int]:
    """Hold the exclusive lock on a file in the block, which gets the descriptor; the file is created if missing.

    Raise ``NotAvailable`` if the lock is not free after ``timeout_s``. ``holder_does`` says what another process does
    that holds it, such as ``installs nle``: after a second of waiting, a line on stderr says so.
    """
    lock = _wait_for(path, fcntl.LOCK_EX, timeout_s, holder_does)
    try:
        yield lock
    finally:
        unlock(lock)


def shared_lock(path: Path, timeout_s: float, *, holder_does: str = "") -> int | None:
    """Lock a file together with other users of it, and return the descriptor; ``None`` if there is no such file.

    Closing the descriptor ends the lock here, and leaves it to processes that have inherited the descriptor.
    ``timeout_s`` and ``holder_does`` are those of :func:`file_lock`.
    """
    with suppress(FileNotFoundError):
        return _wait_for(path, fcntl.LOCK_SH, timeout_s, holder_does)
    return None


def try_lock(path: Path) -> int | None:
    """Lock a file exclusively; return the descriptor that holds the lock, or ``None`` if it is taken.

    The file is created if it is missing.
    """
    return _try(path, fcntl.LOCK_EX)


def unlock(lock: int) -> None:
    """Release an exclusive lock by its descriptor, and close the descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has it open too
    os.close(lock)


def create_lock_file(path: Path, mode: int) -> None:
    """Create a lock's file in advance, for processes that may not write to its folder."""
    lock = _opened(path, os.O_CREAT)
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


def _wait_for(path: Path, kind: int, timeout_s: float, holder_does: str) -> int:
    begun, pause, is_silent = time.monotonic(), _FIRST_PAUSE_S, bool(holder_does)
    while (lock := _try(path, kind)) is None:
        waited_s = time.monotonic() - begun
        if is_silent and waited_s > _SILENCE_S:
            is_silent = False
            line = f"envweave: waiting for another process, which {holder_does} and holds {path}"
            print(line, file=sys.stderr, flush=True)
        if waited_s > timeout_s:
            raise NotAvailable(
                f"another process of this user has held {path} for {timeout_s:g} s; "
                f"find it with 'fuser {path}' and end it"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    return lock


def _try(path: Path, kind: int) -> int | None:
    """Return the descriptor of a locked file; ``None`` if another process has locked it."""
    while True:
        lock = _opened(path, os.O_CREAT if kind == fcntl.LOCK_EX else 0)
        is_kept = False
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            is_kept = _is_at(lock, path)  # its last holder may have removed the file meanwhile
        except BlockingIOError:
            return None
        finally:
            if not is_kept:
                os.close(lock)
        if is_kept:
            return lock


def _is_at(lock: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), os.stat(path))
    return False


def _opened(path: Path, create: int) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | create | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(path, os.O_RDONLY | flags)  # containers see the files of the host read-only
