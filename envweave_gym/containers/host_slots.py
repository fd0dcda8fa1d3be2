"""Slots that the processes of a user share, also those in containers: locks on numbered files.

Containers mount the folder read-only, which is enough to lock a file but not to create it. So all files are
created before.
"""

from __future__ import annotations

import os
from pathlib import Path

from envweave_gym.os_support.file_lock import create_lock_file, try_lock, user_folder

VARIABLE = "ENVWEAVE_SLOTS"
"""The environment variable with the path of the folder in a container; images set it to have the folder."""
NAMES = ("evaluation", "look")
MOST = 1024
"""The largest number of slots of a name."""


def shared_folder() -> Path:
    """The folder with all files, to be mounted in containers; other users cannot enter its parent."""
    folder = _folder_of_user()
    for name in NAMES:
        if not _path(folder, name, MOST - 1).exists():
            for number in range(MOST):
                create_lock_file(_path(folder, name, number), 0o644)
    return folder


def lock_slot(folder: Path, name: str, number: int) -> int | None:
    """Lock a slot in a :func:`folder_of_slots`: the descriptor that holds it, or ``None`` if it is taken."""
    return try_lock(_path(folder, name, number))


def folder_of_slots(name: str) -> Path:
    """The folder with the slots of a name, which is created outside of containers."""
    given = os.environ.get(VARIABLE)
    if given and _path(Path(given), name, MOST - 1).exists():
        return Path(given)
    return _folder_of_user()  # in a container that does not have the folder of the machine, one of its own


def _folder_of_user() -> Path:
    guard = user_folder() / "envweave-slots"
    guard.mkdir(0o700, exist_ok=True)
    folder = guard / "shared"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)  # whatever the umask, as containers run as another user
    return folder


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}.lock"
