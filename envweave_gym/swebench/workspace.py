"""Where a patch is tried: a copy of the repository at its base commit, which nothing else uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envweave_gym.core.faults import InvalidArgument, NotAvailable, SessionLost, shown

SIGNALS = 128
"""Exit codes above this one are those of what was killed."""


@dataclass(frozen=True)
class Ran:
    """A command that was run."""

    output: str
    """What it wrote to stdout and stderr, in the order in which it did."""
    code: int
    """Its exit code; what it is after a timeout says nothing."""
    timed_out: bool = False


class Workspace(Protocol):
    """One copy, for one evaluation; what runs in it sees the repository and nothing of this machine.

    What is wrong with the place itself, rather than with what was run in it, is a :class:`WorkspaceLost` or
    a ``NotAvailable``: both become faults, and no rewards.
    """

    testbed: str
    """The folder of the repository, by the name that commands in the workspace give it."""
    scratch: str
    """A folder outside of the repository that they may write to, likewise."""

    def run(self, command: str, timeout: float) -> Ran:
        """Run a line of bash, in the repository.

        After so many seconds it is killed with all that it has started; what it wrote until then is kept.
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
    """What is not there now, and not at the next try either, unless somebody sees to it."""


class WorkspaceLost(SessionLost):
    """The place of an evaluation is gone in the middle of it."""
