"""Temporary folders named after their owner process, so that folders of killed owners can be removed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from envweave_gym.os_support.process_identity import began, is_gone, namespace

_LONGEST_PATH_CHARS = 32
"""Longest path of the temporary folder, in characters: a Unix socket's path in it may have only 107."""
_OWNED = re.compile(r"(\d+-(?:\d+|there))-([0-9a-f]+)-.*", re.ASCII)
"""Pattern of a folder's name after the prefix: owner process, and its PID namespace."""


def owned_folder(prefix: str) -> Path:
    """Create a private temporary folder, with ``prefix`` and this process's identity in its name."""
    owner = f"{os.getpid()}-{began(os.getpid())}-{namespace()}-"
    parent = tempfile.gettempdir()
    parent = parent if len(parent) <= _LONGEST_PATH_CHARS else "/tmp"
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{owner}", dir=parent))


def remove_left_behind(prefix: str) -> None:
    """Remove this user's folders with ``prefix`` whose owner processes have ended; leave all others."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        named = _OWNED.fullmatch(folder.name.removeprefix(prefix))
        if named and named[2] == namespace() and is_gone(named[1]) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Return whether ``folder`` is a folder of this user, not a link; root must not trust others' names."""
    try:
        status = folder.lstat()
    except FileNotFoundError:  # another process was faster
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
