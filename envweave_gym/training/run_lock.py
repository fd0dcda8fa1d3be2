"""File lock on the folder of a run: of two runs of one name at once, the second is refused.

The lock ends with its process, also after SIGKILL; the file that it is on names the process.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support.file_lock import try_lock, unlock
from envweave_gym.os_support.process_local import in_forked_child

FILE = "run.lock"


def made_by(folder: Path) -> list[Path]:
    """Make a folder with its parents, and return those that were missing, the innermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: list[Path]) -> None:
    """Remove folders, the innermost first, as far as they are empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


class RunLock:
    """Context manager that holds the lock of a folder; the file is removed at the end.

    So is a folder that it has made, if nothing was written there.
    """

    def __init__(self, folder: str | Path) -> None:
        """Lock the folder, which is made if it is missing; raise ``InvalidArgument`` if another run has it."""
        self._path = Path(folder) / FILE
        self._lock: int | None = None
        self._made: list[Path] = []
        try:
            self._made = made_by(Path(folder))
            self._lock = try_lock(self._path)
            if self._lock is not None:
                os.ftruncate(self._lock, 0)
                os.write(self._lock, f"{os.getpid()}\n".encode())
        except OSError as error:
            self.close()
            problem = error.strerror or str(error)
            raise InvalidArgument(
                f"no run can be written to {folder} ({problem}); give another --out"
            ) from error
        if self._lock is None:
            raise InvalidArgument(
                f"another run{self._owner()} writes to {folder}; wait for its end, or give another --run"
            )
        in_forked_child(self, RunLock._forget)

    def _owner(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return f" (process {int(self._path.read_text(encoding='ascii'))})"
        return ""

    def close(self) -> None:
        """Remove the file, and release the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            self._path.unlink(missing_ok=True)
            unlock(lock)
            remove_empty(self._made)

    def _forget(self) -> None:
        """Close the descriptor in a forked child, which would hold the lock after its owner's end."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
