"""Removes folders that programs have filled, however deep, locked or linked their content is."""

from __future__ import annotations

import os
import secrets
import sys
import time
from typing import Any

_TRIES, _PAUSE_S = 50, 0.002
"""How often removal starts again, and the pause: a process that is being killed may still write."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str) -> None:
    """Remove a folder with all its content, as far as permissions allow.

    Subfolders are moved to the top before they are listed: paths stay short and nothing recurses, however
    deep they are. Unreadable ones are made readable. Links are removed and never followed.
    """
    for _ in range(_TRIES):
        try:
            return _remove(folder)
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(_PAUSE_S)
    return None


def _remove(folder: str) -> None:
    top = _opened(folder, None)
    try:
        waiting = _emptied(top, top)
        while waiting:
            descriptor = _opened(waiting[-1], top)
            try:
                waiting[-1:-1] = _emptied(descriptor, top)
            finally:
                os.close(descriptor)
            os.rmdir(waiting.pop(), dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _emptied(descriptor: int, top: int) -> list[str]:
    """Remove the files of a folder and move its subfolders to the top; return their names there."""
    listed: Any = descriptor if sys.version_info >= (3, 7) else f"/proc/self/fd/{descriptor}"
    with os.scandir(listed) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    moved: list[str] = []
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=descriptor)
        elif descriptor == top:
            moved.append(name)
        else:
            moved.append(secrets.token_hex(8))
            os.close(_opened(name, descriptor))
            os.rename(name, moved[-1], src_dir_fd=descriptor, dst_dir_fd=top)
    return moved


def _opened(name: str, above: int | None) -> int:
    """Open a folder and make it accessible to its owner."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        found = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)  # what was opened, whatever its name means by now
        finally:
            os.close(found)
        folder = os.open(name, _FOLDER, dir_fd=above)
    os.fchmod(folder, 0o700)
    return folder
