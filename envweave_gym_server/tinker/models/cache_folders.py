"""Folders of the user's cache that are made once and then only read, by any number of processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from envweave_gym.os_support.file_lock import file_lock

_MAKING_TIMEOUT_S = 600.0


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``; ``make`` fills it if it does not exist.

    ``make`` writes to another folder, which is renamed when it is complete; other processes wait meanwhile.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_name(f".{folder.name}.lock"), _MAKING_TIMEOUT_S):
        if not folder.exists():
            unfinished = folder.with_name(f".{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder
