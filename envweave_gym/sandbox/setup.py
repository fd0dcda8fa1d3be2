"""The arguments of a sandbox: isolation, profile, limits, interpreter and folders."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.sandbox import levels

PROFILES = ("code", "shell")
"""``code`` starts no processes; ``shell`` may, for tests and git."""
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/etc/ssl",
    "/etc/mime.types",
    "/usr/share/ca-certificates",
)
_PROGRAMS = ("/bin", "/usr", "/etc")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that an episode may use."""

    memory: int = 512 << 20
    """Bytes of private memory."""
    file_size: int = 64 << 20
    """Bytes of a file."""
    files: int = 256
    """Open files."""
    processes: int = 64
    """Processes and threads, in a profile with processes and where the episode has a user of its own."""
    output: int = 8192
    """Retained bytes of a step's output, of ``stdout`` and ``stderr`` each: the first and the last."""
    most_output: int = 64 << 20
    """Bytes that a step may print before it is interrupted."""
    text: int = 4096
    """Characters of a value's ``repr``."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) is not int or not 0 < value < 1 << 48:
                raise InvalidArgument(f"limits: {name}={shown(value)} is no number from 1 on")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a sandbox; environments with equal ones share it."""

    isolation: str = "landlock"
    """``process``, ``landlock``, ``namespace`` or ``container``; see ``docs/sandbox.md``."""
    profile: str = "code"
    """``code``, or ``shell`` for programs that start others."""
    limits: Limits = Limits()
    python: str = sys.executable
    """The interpreter of the programs."""
    warm: tuple[str, ...] = ()
    """Modules that are imported once for all episodes."""
    readable: tuple[str, ...] = ()
    """Folders that programs may read, beside the interpreter's."""
    writable: tuple[str, ...] = ()
    """Folders that programs may write to, beside their own."""

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            known = " and ".join(map(repr, PROFILES))
            raise InvalidArgument(f"profile={shown(self.profile)} is unknown; there are {known}")
        for name in ("readable", "writable"):
            for path in getattr(self, name):
                if not os.path.isabs(path):
                    raise InvalidArgument(f"{name}: {shown(path)} is no absolute path")

    def confinement(self) -> dict[str, Any]:
        """Return the rules that each worker applies to itself; see ``inside/confinement.py``."""
        drops_user = os.getuid() == 0 and levels.is_for_all(self.python)
        if self.profile == "shell" and os.getuid() == 0 and not drops_user:
            raise NotAvailable(
                f"profile='shell' needs an interpreter that others than root can read, as {self.python} is "
                "not: give python='/usr/bin/python3', say, or do not run as root"
            )
        system = _SYSTEM if self.profile == "code" else (*_SYSTEM, *_PROGRAMS)
        limits = {name: getattr(self.limits, name) for name in ("memory", "file_size", "files", "processes")}
        return {
            "level": levels.inner(self.isolation),
            "profile": self.profile,
            "drops_user": drops_user,
            "readable": [*system, *levels.trees_of(self.python), *self.readable],
            "writable": list(self.writable),
            **limits,
        }
