"""State files of running fleets: one JSON file for each fleet, in a folder that only this user may read."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_identity import began, processes_seen
from envweave_gym.os_support.xdg_folders import state_folder

_NAME = re.compile(r"\w[\w.-]{0,99}")
_OWNER_ONLY = 0o600
_MAX_TOKEN_BYTES = 4096


class FleetFile(msgspec.Struct, kw_only=True):
    """The state file of a fleet: its replicas, and the process that supervises them (the keeper)."""

    name: str
    backend: str
    token_file: str
    pid: int = msgspec.field(default_factory=os.getpid)
    began: str = msgspec.field(default_factory=lambda: began(os.getpid()))
    boot: str = msgspec.field(default_factory=processes_seen)
    urls: list[str] = []
    """The URLs of the fleet's replicas; empty while they start."""
    restarts: list[int] = []
    problems: dict[str, str] = {}
    cluster: dict[str, str] = {}
    """The Kubernetes context and namespace of the fleet's Pods, where they differ from the kubeconfig's."""

    def __post_init__(self) -> None:
        if len(self.restarts) != len(self.urls):
            raise ValueError("restarts and urls must have the same length")

    def has_keeper(self) -> bool:
        """Return whether the keeper, the process that supervises this fleet, is alive."""
        return self.boot == processes_seen() and began(self.pid) == self.began != ""

    def is_current(self) -> bool:
        """Return whether the file on disk still belongs to this fleet, and not to a newer one with its name."""
        found = find(self.name)
        return found is not None and (found.pid, found.began, found.boot) == (self.pid, self.began, self.boot)

    def claim(self) -> None:
        """Create the file before the fleet starts; raise ``NotAvailable`` if a fleet of this name has one."""
        # A link never replaces a file, and readers never see half of one.
        draft = self._draft()
        try:
            os.link(draft, _file(self.name))
        except FileExistsError:
            raise taken(self.name) from None
        finally:
            draft.unlink()

    def save(self) -> None:
        """Replace the file atomically, so that a reader finds the old or the new state."""
        self._draft().replace(_file(self.name))

    def _draft(self) -> Path:
        """Write the state to a temporary file beside the real one, and return its path."""
        draft = _file(self.name).with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(self))
        draft.chmod(_OWNER_ONLY)
        return draft

    def remove(self) -> bool:
        """Delete the file and a generated token; return ``False`` if a newer fleet of the same name owns them."""
        if not self.is_current():
            return False
        if Path(self.token_file) == own_token_file(self.name):  # a file that the user gave stays
            Path(self.token_file).unlink(missing_ok=True)
        _file(self.name).unlink(missing_ok=True)
        return True


def taken(name: str) -> NotAvailable:
    """Return the error for a fleet name that a running fleet uses."""
    return NotAvailable(
        f"a fleet {shown(name)} is up already; end it with 'envweave fleet down --name {name}', "
        "or choose another --name"
    )


def find(name: str) -> FleetFile | None:
    """Return the state of the fleet with this name, or ``None`` if there is none."""
    try:
        return msgspec.json.decode(_file(name).read_bytes(), type=FleetFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise NotAvailable(f"{_file(name)} cannot be read: {error}; remove it") from None


def find_all() -> tuple[list[FleetFile], list[str]]:
    """Return all fleets of this user, and an error for each file that cannot be read."""
    found: list[FleetFile | None] = []
    wrong: list[str] = []
    for path in sorted(_folder().glob("*.json")):
        try:
            found.append(find(path.stem))
        except EnvweaveError as error:
            wrong.append(str(error))
    return [one for one in found if one is not None], wrong


def own_token_file(name: str) -> Path:
    """Return the path of a fleet's default token file."""
    return _file(name).with_suffix(".token")


def log_file(name: str) -> Path:
    """Return the path of the log with the stderr of a keeper that runs in the background."""
    return _file(name).with_suffix(".log")


def _file(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"--name {shown(name)} is no name; give letters, digits, '-', '_' and '.'")
    return _folder() / f"{name}.json"


def _folder() -> Path:
    folder = state_folder() / "fleets"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(stat.S_IRWXU)
    except OSError as error:
        raise NotAvailable(
            f"{folder}, the folder of fleet state, cannot be used: {error.strerror}; set "
            "XDG_STATE_HOME to another folder"
        ) from None
    return folder
