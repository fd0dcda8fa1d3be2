"""Removes folders that programs have filled, whatever the depth, permissions and links of their content."""

from __future__ import annotations

import os
import secrets
import sys
import time
from typing import Any

_TRIES, _PAUSE_S = 50, 0.002
"""Limit of attempts to remove a folder, and the pause between them: a process being killed may still write."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: str) -> None:
    """Remove a folder with all its content, as far as this user may.

    Nested subfolders are moved up into the top folder before they are listed, so any depth works without recursion and
    without long paths. Unreadable folders are made readable. Links are removed and never followed.
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
    """Remove the files of a folder and move its subfolders into the top folder; return their names there."""
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
    """Open a folder, give its owner all permissions for it, and return the descriptor."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        found = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
        try:
            os.chmod(
                f"/proc/self/fd/{found}", 0o700
            )  # by descriptor: the name may refer to something else by now
        finally:
            os.close(found)
        folder = os.open(name, _FOLDER, dir_fd=above)
    os.fchmod(folder, 0o700)
    return folder
