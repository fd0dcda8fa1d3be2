"""Temporary folders whose names say whose they are, so that what a killed owner leaves behind is removed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from envweave_gym.containers.ownership import began, is_gone, namespace

_LONGEST = 32
"""The path of a socket has at most 107 characters, of which so many may be those of the temporary folder."""
_OWNED = re.compile(r"(\d+-(?:\d+|there))-([0-9a-f]+)-.*", re.ASCII)
"""What follows the prefix: the process, and which processes its number means."""


def owned_folder(prefix: str) -> Path:
    """A folder of this process that nobody else may look into."""
    owner = f"{os.getpid()}-{began(os.getpid())}-{namespace()}-"
    place = tempfile.gettempdir()
    place = place if len(place) <= _LONGEST else "/tmp"
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{owner}", dir=place))


def remove_left_behind(prefix: str) -> None:
    """Remove the folders of this user whose owners are gone; what has such a name by chance is left alone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        named = _OWNED.fullmatch(folder.name.removeprefix(prefix))
        if named and named[2] == namespace() and is_gone(named[1]) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Root's are root's alone: what others have made is theirs, whatever its name says."""
    try:
        status = folder.lstat()
    except FileNotFoundError:  # somebody else was faster
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
