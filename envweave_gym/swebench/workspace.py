"""The workspace of a patch: a copy of the repository at its base commit, which nothing else uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envweave_gym.core.faults import InvalidArgument, NotAvailable, SessionLost, shown

SIGNALS = 128
"""Exit codes above this one mean that a signal killed the command."""


@dataclass(frozen=True)
class Ran:
    """A command that was run."""

    output: str
    """Its stdout and stderr, interleaved as written."""
    code: int
    """Its exit code; what it is after a timeout says nothing."""
    timed_out: bool = False


class Workspace(Protocol):
    """One copy, for one evaluation; what runs in it sees the repository and nothing of this machine.

    A failure of the workspace itself, rather than of a command in it, raises :class:`WorkspaceLost` or
    ``NotAvailable``: both become faults, and no rewards.
    """

    testbed: str
    """The folder of the repository, by the name that commands in the workspace give it."""
    scratch: str
    """A folder outside of the repository that they may write to, likewise."""

    def run(self, command: str, timeout: float) -> Ran:
        """Run a line of bash, in the repository.

        After ``timeout`` seconds it is killed with all that it has started; its output so far is retained.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a file into ``scratch``."""
        ...

    def adapted(self, script: str) -> str:
        """The official evaluation script as it is to be run here."""
        ...

    def close(self) -> None:
        """Remove it, with all that runs in it; a second time does nothing."""
        ...


def check_pids(pids: object) -> None:
    """Refuse what is no number of processes."""
    if type(pids) is not int or not 16 <= pids <= 1 << 22:
        raise InvalidArgument(
            f"pids={shown(pids)} is no number of processes; give an int from 16 to {1 << 22}"
        )


class NotHere(NotAvailable):
    """Something is missing here that a retry does not bring; a person has to install or start it."""


class WorkspaceLost(SessionLost):
    """The place of an evaluation is gone in the middle of it."""
