"""Lock files that all processes of a user on this machine share, also those in containers.

A slot is a ``flock`` on one of these files, which the kernel releases when the process ends. Containers see
the folder read-only, which is enough for a lock; so the files are created before.
"""

from __future__ import annotations

import os
from pathlib import Path

from envweave_gym.os_support.file_lock import create_lock_file, try_lock, user_folder

VARIABLE = "ENVWEAVE_SLOTS"
"""In an image: where its containers are to have the folder. In a container: where it is."""
NAMES = ("evaluation", "look")
MOST = 1024
"""The largest number of slots of a name."""


def shared_folder() -> Path:
    """The folder, with all its files, for containers; it is in a folder that other users cannot enter."""
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
    """The folder with the slots of a name; created if it is this machine's own."""
    given = os.environ.get(VARIABLE)
    if given and _path(Path(given), name, MOST - 1).exists():
        return Path(given)
    return _folder_of_user()  # of the container, where nobody has shown it that of the machine


def _folder_of_user() -> Path:
    guard = user_folder() / "envweave-slots"
    guard.mkdir(0o700, exist_ok=True)
    folder = guard / "shared"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)  # whatever the umask: the user of a container is another
    return folder


def _path(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number}.lock"
