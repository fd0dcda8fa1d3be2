"""The virtual environment of an installed hub package: its wheel, and the pinned dependencies of the lock file.

Nothing is resolved again and nothing is built: uv installs wheels with the hashes of the lock file, or fails. Its key
in the cache is a digest of the versions and hashes, so an environment that exists is used without the hub's wheel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from envweave_gym.core.faults import NotAvailable
from envweave_gym.suites.uv_commands import Uv
from envweave_gym.suites.virtual_environments import VenvSpec


class LockedSpec(VenvSpec, frozen=True, kw_only=True):
    """Exact versions of the hub package and its dependencies, with hashes; ``content`` is a digest of the hashes."""

    hashes: dict[str, tuple[str, ...]]
    """SHA-256 of the wheels that each requirement may be installed from."""
    wheel: Path | None = None
    """The hub's wheel, for an install."""
    check_site: Callable[[Path], None] | None = None
    """Raises an error if the wheel must not be added to the ``site-packages`` with the dependencies."""

    @property
    def key_without_content(self) -> str:
        """Digest of requirements, hashes and interpreter: equal versions with other hashes are not replaced."""
        return f"{super().key_without_content}-{self.content}"

    @property
    def key(self) -> str:
        """Name of the resolution's file."""
        return self.key_without_content

    def pins(self, uv: Uv, interpreter: str) -> list[str]:
        """Return the requirements: they are pins already."""
        return list(self.requirements)

    def fill(self, uv: Uv, folder: Path, interpreter: str, pins: Sequence[str]) -> None:
        """Install the dependencies, check the hub's wheel against them, and install it too."""
        own, *dependencies = self.requirements
        if self.wheel is None:
            raise NotAvailable(f"{self.what}: its wheel is not on this machine; install it again")
        uv.make_empty(folder, interpreter)
        uv.install_locked(folder, [_line(one, self.hashes[one]) for one in dependencies])
        (site,) = folder.glob("lib/python*/site-packages")
        if self.check_site is not None:
            self.check_site(site)
        address = f"{own.partition('==')[0]} @ file://{quote(str(self.wheel))}"
        uv.install_locked(folder, [_line(address, self.hashes[own])])
        uv.check(folder)


def locked_spec(
    what: str, package: str, sha256: str, pins: Mapping[str, Sequence[str]], python: str | None, **more: Any
) -> LockedSpec:
    """Return what the environment of ``package``, as ``name==version`` with the hash of its wheel, consists of."""
    hashes = {package: (sha256,), **{pin: tuple(known) for pin, known in pins.items()}}
    content = hashlib.sha256(msgspec.json.encode(sorted(hashes.items()))).hexdigest()[:16]
    return LockedSpec(what, tuple(hashes), python, content, hashes=hashes, **more)


def _line(requirement: str, hashes: Sequence[str]) -> str:
    return " ".join([requirement, *(f"--hash=sha256:{one}" for one in hashes)])
