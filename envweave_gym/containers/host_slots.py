"""Numbered slots that limit how much runs at once, for all processes and containers of a user on this machine.

Each slot is a lock on a file. Containers mount the folder of these files read-only, which is enough to lock a
file but not to create it. So all files are created before the first container mounts the folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from envweave_gym.os_support.file_lock import create_lock_file, try_lock, user_folder

VARIABLE = "ENVWEAVE_SLOTS"
"""Environment variable with the path of the folder in a container; images that need slots set it."""
NAMES = ("evaluation", "look")
MAX_SLOTS = 1024
"""Number of slots of each name, of which a caller may use fewer."""


def shared_folder() -> Path:
    """Create the lock files of all slots, and return their folder, for containers to mount read-only.

    Its parent folder keeps other users of this machine out.
    """
    folder = _folder_of_user()
    for name in NAMES:
        if not _path(folder, name, MAX_SLOTS - 1).exists():
            for number in range(MAX_SLOTS):
                create_lock_file(_path(folder, name, number), 0o644)
    return folder


def lock_slot(folder: Path, name: str, number: int) -> int | None:
    """Lock a slot in ``folder``; return the descriptor that holds the lock, or ``None`` if the slot is taken."""
    return try_lock(_path(folder, name, number))


def folder_of_slots(name: str) -> Path:
    """Return the folder with the slots of ``name``; outside of containers it is created."""
    given = os.environ.get(VARIABLE)
    if given and _path(Path(given), name, MAX_SLOTS - 1).exists():
        return Path(given)
    # a container without the machine's folder has slots of its own, which limit nobody else
    return _folder_of_user()


def _folder_of_user() -> Path:
    guard = user_folder() / "envweave-slots"
    guard.mkdir(0o700, exist_ok=True)
    folder = guard / "shared"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)  # whatever the umask, as containers run as another user
    return folder


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}.lock"
