"""Memory cgroups for workers, of version 1 and 2, where this process may create them.

Process limits count private memory alone. A cgroup also counts shared mappings, and kernel memory for pipes,
sockets and page tables. Root may create groups, and users of a delegated subtree.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PREFIX = "envweave-sandbox-"
_TRIES, _PAUSE_S = 50, 0.002
"""How often removal is tried: killed processes may still be there for a moment."""


class Version:
    """The file names of a cgroup version: limits, the file to enter by, and the event counters."""

    def __init__(self, limits: tuple[tuple[str, bool], ...], entrance: str, events: str) -> None:
        """``limits`` are files (the first must exist), and whether their value is the memory, or 0."""
        self.limits, self.entrance, self.events = limits, entrance, events


# a process enters by writing 0 itself: the group of another process is changed under a lock that takes 16 ms
V1 = Version(
    (("memory.limit_in_bytes", True), ("memory.memsw.limit_in_bytes", True)), "tasks", "memory.oom_control"
)
V2 = Version((("memory.max", True), ("memory.swap.max", False)), "cgroup.procs", "memory.events")


class MemoryGroup:
    """A cgroup, and the descriptor by which a process enters it."""

    def __init__(self, folder: str, version: Version, memory: int) -> None:
        os.mkdir(folder, 0o755)
        self._folder, self._version, self.descriptor = folder, version, -1
        try:
            for name, is_memory in version.limits:
                path = os.path.join(folder, name)
                if os.path.exists(path) or name == version.limits[0][0]:  # swap is not counted everywhere
                    _write(path, str(memory if is_memory else 0))
            entrance = os.path.join(folder, version.entrance)
            self.descriptor = os.open(entrance, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.remove()
            raise

    def close_entrance(self) -> None:
        """Close the descriptor, which the worker has now."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def has_killed(self) -> bool:
        """Return whether the kernel killed a process in it for lack of memory."""
        with suppress(OSError):
            lines = Path(self._folder, self._version.events).read_text().splitlines()
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)
        return False

    def remove(self) -> None:
        """Remove it once its processes are gone; if they stay, the sandbox tries again at its end."""
        self.close_entrance()
        for _ in range(_TRIES):
            try:
                os.rmdir(self._folder)
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(_PAUSE_S)
            else:
                return


class MemoryGroups:
    """Creates the cgroups of one sandbox, beside or below that of this process."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._parent = parent_group()
        self._name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-"
        self._numbers = itertools.count()
        for folder in self._folders(_PREFIX):
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if not os.path.exists(f"/proc/{pid}"):  # its host was killed
                _remove(folder)

    def new(self) -> MemoryGroup | None:
        """Create a cgroup; None where this is not possible."""
        if self._parent is None:
            return None
        above, version = self._parent
        try:
            return MemoryGroup(
                os.path.join(above, f"{self._name}{next(self._numbers)}"), version, self._memory
            )
        except OSError:  # the kernel allows none here, or this process has too many open files for now
            return None

    def remove_all(self) -> None:
        """Remove those that are left."""
        for folder in self._folders(self._name):
            _remove(folder)

    def _folders(self, prefix: str) -> Iterator[Path]:
        if self._parent is not None:
            yield from Path(self._parent[0]).glob(f"{prefix}*")


def _remove(folder: Path) -> None:
    with suppress(OSError):  # processes are in it still
        folder.rmdir()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def parent_group(proc: str = "/proc/self") -> tuple[str, Version] | None:
    """Return the cgroup in which this process may create others that count memory."""
    with suppress(OSError):
        own = Path(proc, "cgroup").read_text().splitlines()
        mounts = Path(proc, "mountinfo").read_text().splitlines()
        for version, paths in ((V1, _paths(own, "memory")), (V2, _paths(own, ""))):
            for path in paths:
                above = _folder(path, mounts, version)
                if above is not None and _is_open(above):
                    return above, version
    return None


def _paths(own: list[str], controller: str) -> list[str]:
    """Return this process's paths for a controller; version 2 has none by name."""
    found = [line.split(":", 2) for line in own]
    return [path for _, controllers, path in found if controller in controllers.split(",")]


def _folder(path: str, mounts: list[str], version: Version) -> str | None:
    """Return where a cgroup is mounted; for version 2 it or its parent, whichever may have children."""
    for line in mounts:
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split()[:3]
        is_it = kind == "cgroup2" if version is V2 else kind == "cgroup" and "memory" in options.split(",")
        if not is_it or not (path == root or path.startswith(root.rstrip("/") + "/")):
            continue
        own = os.path.normpath(f"{point}/{path[len(root.rstrip('/')) :]}")
        if version is V1:
            return own
        return next(filter(_shares_memory, (own, os.path.dirname(own))), None)
    return None


def _is_open(folder: str) -> bool:
    """Return whether this process may create groups here and move processes into them."""
    return os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


def _shares_memory(folder: str) -> bool:
    """Return whether child groups count memory."""
    with suppress(OSError):
        return "memory" in Path(folder, "cgroup.subtree_control").read_text().split()
    return False
