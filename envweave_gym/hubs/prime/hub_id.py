"""Names of environments on the Prime Environments Hub: ``owner/name`` and ``owner/name@version``."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from envweave_gym.core.faults import InvalidArgument, shown

SCHEME = "prime://"
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9])?"
"""Pattern of owners and names."""
VERSION = r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,98}"
"""Pattern of versions."""
LATEST = "latest"


@dataclass(frozen=True)
class HubId:
    """An environment of the hub; ``version`` is a version, the first digits of a content hash, or ``None``."""

    owner: str
    name: str
    version: str | None = None

    @property
    def path(self) -> str:
        """The ID without its version."""
        return f"{self.owner}/{self.name}"

    @property
    def module(self) -> str:
        """The module that both generations of the library import for this name."""
        return self.name.replace("-", "_").replace(".", "_").lower()

    @property
    def distribution(self) -> str:
        """The name of the package, as package indexes normalise it."""
        return normalised(self.name)

    def __str__(self) -> str:
        return self.path if self.version is None else f"{self.path}@{self.version}"


def normalised(name: str) -> str:
    """Return the name of a package as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def hub_id_of(text: object) -> HubId:
    """Parse ``owner/name[@version]``, with or without ``prime://``; raise ``InvalidArgument`` for anything else."""
    bare = text.removeprefix(SCHEME) if isinstance(text, str) else ""
    path, at, version = bare.partition("@")
    owner, slash, name = path.partition("/")
    whole = re.fullmatch(NAME, owner) and slash and re.fullmatch(NAME, name)
    if not whole or (at and not re.fullmatch(VERSION, version)):
        raise InvalidArgument(
            f"{shown(text)} is not an environment of the hub; give 'owner/name' or 'owner/name@version', "
            "with names in letters, digits, '.', '-' and '_'"
        )
    found = HubId(owner, name, None if not at or version == LATEST else version)
    if found.module in sys.stdlib_module_names:
        raise InvalidArgument(f"{shown(text)} would hide Python's own module {found.module!r}; it is refused")
    return found
