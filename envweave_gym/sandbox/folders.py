"""Scratch folders: one for each process that uses a sandbox, in it one for each episode."""

from __future__ import annotations

import os
import secrets
import shutil
import stat

from envweave_gym.containers.folders import owned_folder, remove_left_behind

_PREFIX = "envweave-sandbox-"


def root_folder() -> str:
    """A folder for the episodes of this process, which nobody else can list."""
    remove_left_behind(_PREFIX)
    folder = owned_folder(_PREFIX)
    folder.chmod(0o711)
    return os.path.realpath(folder)


def episode_folder(root: str) -> str:
    """A folder for a new episode, in one that its forks are to have too."""
    above = os.path.join(root, secrets.token_hex(16))
    os.mkdir(above, 0o711)
    folder = os.path.join(above, secrets.token_hex(8))
    os.mkdir(folder, 0o700)
    return folder


def copied(folder: str) -> str:
    """A copy of the folder of an episode, beside it; of files, folders and links, and of nothing else."""
    copy = os.path.join(os.path.dirname(folder), secrets.token_hex(8))
    owner = os.stat(folder)
    shutil.copytree(folder, copy, symlinks=True, ignore=_special)
    if os.getuid() == 0:
        for place, folders, files in os.walk(copy):
            for name in (".", *folders, *files):
                os.chown(os.path.join(place, name), owner.st_uid, owner.st_gid, follow_symlinks=False)
    return copy


def _special(folder: str, names: list[str]) -> list[str]:
    """What must not be read: pipes, sockets and devices."""
    kinds = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    plain = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in kinds.items() if not any(is_plain(mode) for is_plain in plain)]


def remove(folder: str) -> None:
    """Remove the folder of an episode, and the one above it when it is the last of those in it."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(folder))
    except OSError:  # another fork of the episode has its folder there
        return
