"""Lock file of installed hub environments: versions and hashes of them and of their dependencies.

A project's file, ``envweave-hub.json`` in the working directory, is used where it exists, else the user's. What is
installed from it lies in the cache of virtual environments, which all lock files share and the sweep of unused ones
empties. So a lock file may be moved or copied, and installs the same again elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from envweave_gym.core.faults import NotAvailable
from envweave_gym.hubs.prime.hub_id import NAME, VERSION, HubId
from envweave_gym.hubs.prime.wheel_check import Generation
from envweave_gym.os_support.file_lock import file_lock
from envweave_gym.os_support.xdg_folders import configuration_folder

PROJECT_FILE = "envweave-hub.json"
FORMAT = 2


# A project's lock file may be anybody's: what it says becomes paths and requirements only if it has these forms.
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{NAME}\Z")]
_Version = Annotated[str, msgspec.Meta(pattern=rf"^{VERSION}\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_WheelName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+!-]*\.whl\Z")]
_Python = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x20-][^\x00-\x1f]*\Z")]
_Pin = Annotated[str, msgspec.Meta(pattern=rf"^{NAME}(\[[A-Za-z0-9_.,-]*\])?=={VERSION}( *;[^@\r\n]*)?\Z")]


class HubPackage(msgspec.Struct, frozen=True, kw_only=True):
    """One installed version of a hub environment."""

    owner: _Name
    name: _Name
    version: _Version
    sha256: _Sha256
    """Hash of the wheel."""
    filename: _WheelName
    generation: Generation
    content_hash: str | None = None
    """Hash that the hub gives for the source."""
    python: _Python | None = None
    """Python that it was installed for, if another than that of the installing process."""
    pins: dict[_Pin, tuple[_Sha256, ...]] = {}
    """Exact versions of all packages that it needs, each with the hashes of the wheels that are accepted."""
    agents: tuple[str, ...] = ()
    """Agents that it has without ``env_args``; empty if that is not known, as for the first generation."""

    @property
    def hub_id(self) -> HubId:
        """The ID with the version."""
        return HubId(self.owner, self.name, self.version)

    def is_named(self, wanted: HubId) -> bool:
        """Return whether an ID names this package; one without a version names every version."""
        mine, theirs = self.hub_id, wanted
        same = (mine.owner.lower(), mine.distribution) == (theirs.owner.lower(), theirs.distribution)
        version = wanted.version
        is_hash = version is not None and len(version) >= 8 and (self.content_hash or "").startswith(version)
        return same and (version in (None, self.version) or is_hash)


class _Format(msgspec.Struct, frozen=True):
    format: int


class _LockFile(msgspec.Struct, frozen=True):
    format: int = FORMAT
    packages: list[HubPackage] = []


class HubLock:
    """One lock file; every change reads and writes it while its lock is held."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def packages(self) -> list[HubPackage]:
        """Return the packages, the last installed at the end."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NotAvailable(f"the lock file {self.path} cannot be read: {error.strerror}") from None
        try:
            version = msgspec.json.decode(data, type=_Format).format
            packages = msgspec.json.decode(data, type=_LockFile).packages if version == FORMAT else []
        except (msgspec.MsgspecError, RecursionError) as error:
            raise NotAvailable(
                f"{self.path} is not a lock file of hub environments: {error}; remove it"
            ) from None
        if version != FORMAT:
            advice = "update it" if version > FORMAT else "remove the file and install its environments again"
            raise NotAvailable(
                f"{self.path} has the format {version}, and this version of envweave-gym reads {FORMAT}; {advice}"
            )
        return packages

    def find(self, wanted: HubId) -> HubPackage | None:
        """Return the package that an ID names; of several versions, the one that was installed last."""
        return next((one for one in reversed(self.packages()) if one.is_named(wanted)), None)

    def add(self, package: HubPackage) -> None:
        """Write a package to the file, in place of the same version."""
        same = HubId(package.owner, package.name, package.version)
        self._change(lambda packages: [*(one for one in packages if not one.is_named(same)), package])

    def remove(self, wanted: HubId) -> list[HubPackage]:
        """Remove the packages that an ID names, and return them."""
        removed = [one for one in self.packages() if one.is_named(wanted)]
        if not removed:  # no folder and no file is made for nothing
            return []
        self._change(lambda packages: [one for one in packages if not one.is_named(wanted)])
        return removed

    def _change(self, change: Callable[[list[HubPackage]], list[HubPackage]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(self.path.with_name(f".{self.path.name}.lock")):
                packages = change(self.packages())
                _replace(
                    self.path,
                    msgspec.json.format(msgspec.json.encode(_LockFile(packages=packages)), indent=1),
                )
        except OSError as error:
            raise NotAvailable(f"the lock file {self.path} cannot be written: {error}") from None


def lock_of(project: bool | None = None) -> HubLock:
    """Return the project's lock file if it exists, else the user's; ``project`` chooses one of them."""
    in_project = Path(PROJECT_FILE).absolute()
    if project or (project is None and in_project.exists()):
        return HubLock(in_project)
    return HubLock(configuration_folder() / "hub.json")


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; a new one gets the usual permissions."""
    draft, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(draft, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), _mode_of(path))
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _mode_of(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
