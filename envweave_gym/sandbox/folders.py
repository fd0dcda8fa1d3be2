"""Scratch folders of episodes: created, copied and removed inside one root folder for each host process.

Programs may change a folder while the host copies or removes it, so nothing here follows links.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.owned_folders import owned_folder, remove_left_behind
from envweave_gym.sandbox.inside.remove_tree import remove_tree

_PREFIX = "envweave-sandbox-"
MAX_COPIED_BYTES, MAX_COPIED_FILES, MAX_DEPTH = 1 << 30, 20_000, 100
"""Limits of a copied folder: bytes, files, and nesting."""
_UNLISTED = 0o311
"""Permissions of a folder that every user may enter and nobody list, so its names cannot be found out."""
_roots: dict[str, str] = {}
"""The root folder of each live episode's folder."""
_CHUNK_BYTES = 1 << 20
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Open flags for files of a program: links are not followed, and opening a pipe does not wait for a writer."""
_READ_FOLDER = _READ_FILE | os.O_DIRECTORY


def root_folder() -> str:
    """Create the root folder of this process, which workers may enter but not list; return its real path."""
    remove_left_behind(_PREFIX)
    folder = owned_folder(_PREFIX)
    folder.chmod(0o711)
    return os.path.realpath(folder)


def episode_folder(root: str) -> str:
    """Create and return the folder of an episode, inside a folder that programs cannot list.

    If the worker is forked, the copy's folder is created beside it.
    """
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
    """Copy the files, folders and links of an episode; return the path of the copy.

    The copy lies beside the original, under random names in a folder that cannot be listed, so that programs
    cannot find it. Raise ``NotAvailable`` if the content exceeds the limits or cannot be read.
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
    """Copies a folder recursively, and counts bytes and files against the limits."""

    def __init__(self) -> None:
        self._bytes, self._files = MAX_COPIED_BYTES, MAX_COPIED_FILES

    def copy(self, folder: str, copy: str) -> None:
        with _opened(folder, _READ_FOLDER) as source, _opened(copy, _READ_FOLDER) as target:
            self._folder(source, target, MAX_DEPTH)

    def _folder(self, source: int, target: int, depth: int) -> None:
        if depth == 0:
            raise NotAvailable(
                f"the folder cannot be copied: it has more than {MAX_DEPTH} levels of nested folders"
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
            if not stat.S_ISREG(os.fstat(original).st_mode):  # the program replaced it after the listing
                return
            with _opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, target) as copy:
                while data := os.read(original, _CHUNK_BYTES):
                    self._count(size=len(data))
                    while data:  # os.write may write only a part, as on a nearly full disk
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
    """Give a copy the owner and the permissions of its original, without setuid and setgid bits."""
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
    """Remove the folder of an episode, and the folders above it that contain no other episode's folder.

    The folders above are removed with all content, as programs that run under this process's user may have written
    there.
    """
    root = _roots.pop(folder, None)
    remove_tree(folder)
    above = os.path.dirname(folder)
    while root is not None and above != root and not any(map(_is_in(above), tuple(_roots))):
        remove_tree(above)
        above = os.path.dirname(above)


def remove_all(root: str) -> None:
    """Remove the root folder with the folders of all its episodes."""
    remove_tree(root)
    for folder in filter(_is_in(root), tuple(_roots)):
        _roots.pop(folder, None)


def _is_in(above: str) -> Callable[[str], bool]:
    return lambda folder: folder.startswith(f"{above}/")
