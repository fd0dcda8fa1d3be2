"""Memory cgroups (versions 1 and 2) for workers, on machines where this process may create them.

Rlimits count only private memory. A cgroup also counts shared mappings and the kernel's memory for pipes, sockets
and page tables. Root may create cgroups, and other users may in a subtree that was delegated to them.
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
"""Limit of attempts to remove a cgroup, and the pause between them: killed processes take a moment to end."""


class Version:
    """The names of a cgroup version's files: the limits, the list of members, and the event counters."""

    def __init__(self, limits: tuple[tuple[str, bool], ...], entrance: str, events: str) -> None:
        """Store the names; ``limits`` pairs each file with whether to write the memory limit into it, or else 0.

        The first of these files must exist; the others count swap, which not every kernel does.
        """
        self.limits, self.entrance, self.events = limits, entrance, events


# A worker moves itself by writing 0 into the list of members. Moving another process would take a lock of the
# kernel that costs 16 ms.
# The limit with swap may not be lower than the one without, so it is set after it.
V1 = Version(
    (("memory.limit_in_bytes", True), ("memory.memsw.limit_in_bytes", True)), "tasks", "memory.oom_control"
)
V2 = Version((("memory.max", True), ("memory.swap.max", False)), "cgroup.procs", "memory.events")


class MemoryGroup:
    """A cgroup with a memory limit, and the descriptor through which a process joins it."""

    def __init__(self, folder: str, version: Version, memory: int) -> None:
        os.mkdir(folder, 0o755)
        self._folder, self._version, self.descriptor = folder, version, -1
        try:
            for name, is_memory in version.limits:
                path = os.path.join(folder, name)
                if os.path.exists(path) or name == version.limits[0][0]:  # the files for swap may be missing
                    _write(path, str(memory if is_memory else 0))
            entrance = os.path.join(folder, version.entrance)
            self.descriptor = os.open(entrance, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.remove()
            raise

    def close_entrance(self) -> None:
        """Close this process's copy of the descriptor that was passed to the worker."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def has_killed(self) -> bool:
        """Return whether the kernel killed a process of the cgroup because it exceeded the memory limit."""
        with suppress(OSError):
            lines = Path(self._folder, self._version.events).read_text().splitlines()
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in lines)
        return False

    def remove(self) -> None:
        """Remove the cgroup once its processes have ended; if they do not, the sandbox tries again when it closes."""
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
    """Creates the cgroups of one sandbox, beside or below the cgroup of this process."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._parent = parent_group()
        self._name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-"
        self._numbers = itertools.count()
        for folder in self._folders(_PREFIX):
            pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if not os.path.exists(
                f"/proc/{pid}"
            ):  # the host that created it was killed before it could remove it
                _remove(folder)

    def new(self) -> MemoryGroup | None:
        """Create a cgroup and return it, or ``None`` if this process may not create any."""
        if self._parent is None:
            return None
        above, version = self._parent
        try:
            return MemoryGroup(
                os.path.join(above, f"{self._name}{next(self._numbers)}"), version, self._memory
            )
        except OSError:  # the kernel refuses it, or this process has too many open files at the moment
            return None

    def remove_all(self) -> None:
        """Remove the sandbox's cgroups that still exist and have no process."""
        for folder in self._folders(self._name):
            _remove(folder)

    def _folders(self, prefix: str) -> Iterator[Path]:
        if self._parent is not None:
            yield from Path(self._parent[0]).glob(f"{prefix}*")


def _remove(folder: Path) -> None:
    with suppress(OSError):  # it still has processes
        folder.rmdir()


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def parent_group(proc: str = "/proc/self") -> tuple[str, Version] | None:
    """Return the folder and version of a cgroup in which this process may create memory cgroups, or ``None``."""
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
    """Return this process's cgroup paths for a controller; version 2 lists its path under the name ``""``."""
    found = [line.split(":", 2) for line in own]
    return [path for _, controllers, path in found if controller in controllers.split(",")]


def _folder(path: str, mounts: list[str], version: Version) -> str | None:
    """Return the folder in which memory cgroups can be created, for a cgroup path of this process.

    Version 1: the cgroup's own folder. Version 2: that or its parent's, whichever lets children count memory.
    Return ``None`` if there is none.
    """
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
    """Return whether this process may create cgroups in the folder and move processes into them."""
    return os.access(folder, os.W_OK) and os.access(f"{folder}/cgroup.procs", os.W_OK)


def _shares_memory(folder: str) -> bool:
    """Return whether the children of this cgroup have memory limits (``cgroup.subtree_control``)."""
    with suppress(OSError):
        return "memory" in Path(folder, "cgroup.subtree_control").read_text().split()
    return False
