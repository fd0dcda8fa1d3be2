"""Where a patch is tried: a copy of the repository at its base commit, which nothing else uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envweave_gym.faults import SessionLost

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


class WorkspaceLost(SessionLost):
    """The place of an evaluation is gone in the middle of it."""
