"""Scratch folders: one for each process that uses a sandbox, in it one for each episode.

Programs work in them while the host copies and removes them, so nothing here follows a link that a program
may have put where a folder was.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.owned_folders import owned_folder, remove_left_behind
from envweave_gym.sandbox.inside.trees import remove_tree

_PREFIX = "envweave-sandbox-"
MOST_COPIED, MOST_FILES, DEEPEST = 1 << 30, 20_000, 100
"""So many bytes, files and folders in folders are copied for a fork."""
_UNLISTED = 0o311
_roots: dict[str, str] = {}
"""The folders of episodes that this process has made and not removed, each with that of all episodes."""
_CHUNK = 1 << 20
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""How files of a program are opened: never through a link, and never waiting for who writes to a pipe."""


def root_folder() -> str:
    """A folder for the episodes of this process, which nobody else can list."""
    remove_left_behind(_PREFIX)
    folder = owned_folder(_PREFIX)
    folder.chmod(0o711)
    return os.path.realpath(folder)


def episode_folder(root: str) -> str:
    """A folder for a new episode, in one that no program can list, where those of its copies will be too."""
    return _made(root, root)


def _made(place: str, root: str) -> str:
    above = os.path.join(place, secrets.token_hex(8))
    folder = os.path.join(above, secrets.token_hex(8))
    os.mkdir(above, 0o700)
    os.chmod(above, _UNLISTED)
    os.mkdir(folder, 0o700)
    _roots[folder] = root
    return folder


def copied(folder: str) -> str:
    """A copy of the folder of an episode: of files, folders and links, and of nothing else.

    It lies in the folder above, which the program may use but not list, so it does not know the way to it.
    """
    copy = _made(os.path.dirname(folder), _roots[folder])
    try:
        _Copy().copy(folder, copy)
    except BaseException as error:
        remove(copy)
        if isinstance(error, OSError):
            raise NotAvailable(f"the folder of the episode cannot be copied: {error}") from None
        raise
    return copy


class _Copy:
    """One copy of a folder, which has a limit."""

    def __init__(self) -> None:
        self._bytes, self._files = MOST_COPIED, MOST_FILES

    def copy(self, folder: str, copy: str) -> None:
        source = os.open(folder, _LOOK | os.O_DIRECTORY)
        try:
            target = os.open(copy, _LOOK | os.O_DIRECTORY)
            try:
                self._folder(source, target, DEEPEST)
            finally:
                os.close(target)
        finally:
            os.close(source)

    def _folder(self, source: int, target: int, depth: int) -> None:
        if depth == 0:
            raise NotAvailable(f"the folder cannot be copied: more than {DEEPEST} folders lie in each other")
        for name in _names(source):
            self._take(files=1)
            kind = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            if stat.S_ISLNK(kind):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                _give(name, source, target)
            elif stat.S_ISDIR(kind):
                os.mkdir(name, 0o700, dir_fd=target)
                self._within(name, source, target, depth)
            elif stat.S_ISREG(kind):
                self._file(name, source, target)
        _give_open(source, target)

    def _within(self, name: str, source: int, target: int, depth: int) -> None:
        inner = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=source)
        try:
            copy = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=target)
            try:
                self._folder(inner, copy, depth - 1)
            finally:
                os.close(copy)
        finally:
            os.close(inner)

    def _file(self, name: str, source: int, target: int) -> None:
        original = os.open(name, _LOOK, dir_fd=source)
        try:
            if not stat.S_ISREG(os.fstat(original).st_mode):
                return
            copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            try:
                while data := os.read(original, _CHUNK):
                    self._take(size=len(data))
                    while data:  # a disk that is full may take a part
                        data = data[os.write(copy, data) :]
                _give_open(original, copy)
            finally:
                os.close(copy)
        finally:
            os.close(original)

    def _take(self, size: int = 0, files: int = 0) -> None:
        self._bytes -= size
        self._files -= files
        if self._bytes < 0 or self._files < 0:
            raise NotAvailable(
                f"the folder cannot be copied: it has more than {MOST_COPIED >> 20} MiB or {MOST_FILES} files"
            )


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from [entry.name for entry in entries]


def _give_open(original: int, copy: int) -> None:
    """Give a copy the owner and the permissions of what it is a copy of."""
    status = os.fstat(original)
    if os.getuid() == 0:
        os.fchown(copy, status.st_uid, status.st_gid)
    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)


def _give(name: str, source: int, target: int) -> None:
    """Give a link an owner."""
    if os.getuid() == 0:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)


def remove(folder: str) -> None:
    """Remove the folder of an episode, and those above it that have no more episodes in them.

    Programs that are the same user as this process may have put something there.
    """
    root = _roots.pop(folder, None)
    remove_tree(folder)
    above = os.path.dirname(folder)
    while root is not None and above != root and not any(map(_is_in(above), tuple(_roots))):
        remove_tree(above)
        above = os.path.dirname(above)


def remove_all(root: str) -> None:
    """Remove the folder of all episodes."""
    remove_tree(root)
    for folder in filter(_is_in(root), tuple(_roots)):
        _roots.pop(folder, None)


def _is_in(above: str) -> Callable[[str], bool]:
    return lambda folder: folder.startswith(f"{above}/")
