"""The arguments of a sandbox: isolation, profile, limits, interpreter and folders."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec

from envweave_gym.core.config import one_of
from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.sandbox import levels
from envweave_gym.sandbox.limits import Limits

PROFILES = ("code", "shell")
"""Names of the profiles: programs under ``shell`` may start processes, such as tests and git; under ``code`` not."""
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
"""Paths that programs of both profiles may read."""
_PROGRAMS = ("/bin", "/usr", "/etc")
"""Paths that programs of the profile ``shell`` may read in addition."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a sandbox; environments with equal arguments share one sandbox."""

    isolation: str = "landlock"
    """The isolation level: ``process``, ``landlock``, ``namespace`` or ``container``; see ``docs/sandbox.md``."""
    profile: str = "code"
    """The profile: ``code``, or ``shell`` for programs that start other programs."""
    limits: Limits = Limits()
    python: str = sys.executable
    """The path of the interpreter that runs the programs."""
    warm: tuple[str, ...] = ()
    """The modules that the zygote imports once, so that no episode has to import them."""
    readable: tuple[str, ...] = ()
    """The folders that programs may read in addition to the interpreter's."""
    writable: tuple[str, ...] = ()
    """The folders that programs may write to in addition to the folder of their episode."""

    def __post_init__(self) -> None:
        one_of("profile", self.profile, PROFILES)
        for name in ("readable", "writable"):
            for path in getattr(self, name):
                if not os.path.isabs(path):
                    raise InvalidArgument(f"{name}: {shown(path)} is not an absolute path")

    def confinement(self) -> dict[str, Any]:
        """Return the rules that each worker applies to itself; see ``inside/confinement.py``."""
        drops_user = os.getuid() == 0 and levels.is_for_all(self.python)
        if self.profile == "shell" and os.getuid() == 0 and not drops_user:
            raise NotAvailable(
                f"profile='shell' needs an interpreter that every user can read, and only root can read "
                f"{self.python}: give python='/usr/bin/python3', for example, or do not run as root"
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
