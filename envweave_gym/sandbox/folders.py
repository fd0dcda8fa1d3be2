"""Scratch folders of episodes, inside one folder for each process that uses a sandbox.

Programs work in them while the host copies and removes them, so nothing here follows links.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.owned_folders import owned_folder, remove_left_behind
from envweave_gym.sandbox.inside.trees import remove_tree

_PREFIX = "envweave-sandbox-"
MAX_COPIED_BYTES, MAX_COPIED_FILES, MAX_DEPTH = 1 << 30, 20_000, 100
"""Limits of a copy: bytes, files, and nesting."""
_UNLISTED = 0o311
_roots: dict[str, str] = {}
"""The folder of each live episode, with the root that it is in."""
_CHUNK = 1 << 20
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Open flags for files of a program: follow no links, and do not wait for the writer of a pipe."""
_READ_FOLDER = _READ_FILE | os.O_DIRECTORY


def root_folder() -> str:
    """Create the root folder of this process, which others may enter and not list."""
    remove_left_behind(_PREFIX)
    folder = owned_folder(_PREFIX)
    folder.chmod(0o711)
    return os.path.realpath(folder)


def episode_folder(root: str) -> str:
    """Create the folder of an episode, inside a folder that no program can list; copies will be beside it."""
    return _create(root, root)


def _create(parent: str, root: str) -> str:
    above = os.path.join(parent, secrets.token_hex(8))
    folder = os.path.join(above, secrets.token_hex(8))
    os.mkdir(above, 0o700)
    os.chmod(above, _UNLISTED)
    os.mkdir(folder, 0o700)
    _roots[folder] = root
    return folder


def copied(folder: str) -> str:
    """Copy the files, folders and links of an episode, and nothing else.

    The copy is beside the original, in a folder that programs may enter and not list: they cannot guess its
    name.
    """
    copy = _create(os.path.dirname(folder), _roots[folder])
    try:
        _Copy().copy(folder, copy)
    except BaseException as error:
        remove(copy)
        if isinstance(error, OSError):
            raise NotAvailable(f"the folder of the episode cannot be copied: {error}") from None
        raise
    return copy


class _Copy:
    """A copy in progress, with its limits."""

    def __init__(self) -> None:
        self._bytes, self._files = MAX_COPIED_BYTES, MAX_COPIED_FILES

    def copy(self, folder: str, copy: str) -> None:
        with _opened(folder, _READ_FOLDER) as source, _opened(copy, _READ_FOLDER) as target:
            self._folder(source, target, MAX_DEPTH)

    def _folder(self, source: int, target: int, depth: int) -> None:
        if depth == 0:
            raise NotAvailable(
                f"the folder cannot be copied: more than {MAX_DEPTH} folders lie in each other"
            )
        for name in _names(source):
            self._count(files=1)
            kind = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            if stat.S_ISLNK(kind):
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                _copy_owner(name, source, target)
            elif stat.S_ISDIR(kind):
                os.mkdir(name, 0o700, dir_fd=target)
                with (
                    _opened(name, _READ_FOLDER, source) as inner,
                    _opened(name, _READ_FOLDER, target) as copy,
                ):
                    self._folder(inner, copy, depth - 1)
            elif stat.S_ISREG(kind):
                self._file(name, source, target)
        _copy_metadata(source, target)

    def _file(self, name: str, source: int, target: int) -> None:
        with _opened(name, _READ_FILE, source) as original:
            if not stat.S_ISREG(
                os.fstat(original).st_mode
            ):  # the program has replaced it since it was listed
                return
            with _opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, target) as copy:
                while data := os.read(original, _CHUNK):
                    self._count(size=len(data))
                    while data:  # a full disk may take a part
                        data = data[os.write(copy, data) :]
                _copy_metadata(original, copy)

    def _count(self, size: int = 0, files: int = 0) -> None:
        self._bytes -= size
        self._files -= files
        if self._bytes < 0 or self._files < 0:
            limit = f"{MAX_COPIED_BYTES >> 20} MiB or {MAX_COPIED_FILES} files"
            raise NotAvailable(f"the folder cannot be copied: it has more than {limit}")


@contextmanager
def _opened(name: str, flags: int, folder: int | None = None) -> Generator[int]:
    descriptor = os.open(name, flags | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from [entry.name for entry in entries]


def _copy_metadata(original: int, copy: int) -> None:
    """Give a copy the owner and the permissions of its original."""
    status = os.fstat(original)
    if os.getuid() == 0:
        os.fchown(copy, status.st_uid, status.st_gid)
    os.fchmod(copy, stat.S_IMODE(status.st_mode) & 0o777)


def _copy_owner(name: str, source: int, target: int) -> None:
    """Give a copied link the owner of its original."""
    if os.getuid() == 0:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)


def remove(folder: str) -> None:
    """Remove the folder of an episode, and the folders above it that hold no other episode.

    Programs that run as the user of this process may have put files there.
    """
    root = _roots.pop(folder, None)
    remove_tree(folder)
    above = os.path.dirname(folder)
    while root is not None and above != root and not any(map(_is_in(above), tuple(_roots))):
        remove_tree(above)
        above = os.path.dirname(above)


def remove_all(root: str) -> None:
    """Remove the root folder."""
    remove_tree(root)
    for folder in filter(_is_in(root), tuple(_roots)):
        _roots.pop(folder, None)


def _is_in(above: str) -> Callable[[str], bool]:
    return lambda folder: folder.startswith(f"{above}/")
