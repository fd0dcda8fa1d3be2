"""The interface of workspaces: a private copy of a repository at its base commit, with four calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envweave_gym.core.faults import InvalidArgument, NotAvailable, SessionLost, shown

SIGNALS = 128
"""Larger exit codes mean that a signal killed the command."""


@dataclass(frozen=True)
class Ran:
    """The result of a command."""

    output: str
    """Its stdout and stderr, interleaved as written."""
    code: int
    """Its exit code, which means nothing after a timeout."""
    timed_out: bool = False


class Workspace(Protocol):
    """One copy of a repository, for one evaluation; commands see it and nothing else of this machine.

    A command may fail; that is a result. A workspace that fails itself raises :class:`WorkspaceLost` or
    ``NotAvailable``, which become faults and never rewards.
    """

    testbed: str
    """The path of the repository, as commands see it."""
    scratch: str
    """The path of a writable folder outside of the repository, as commands see it."""

    def run(self, command: str, timeout: float) -> Ran:
        """Run a line of bash in the repository; after ``timeout`` seconds kill it with all its children."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a file into ``scratch``."""
        ...

    def adapted(self, script: str) -> str:
        """Return the official evaluation script with the changes that this workspace needs."""
        ...

    def close(self) -> None:
        """Remove the workspace and kill its processes; a second call does nothing."""
        ...


def check_pids(pids: object) -> None:
    """Refuse a value of ``pids`` that is no limit of processes."""
    if type(pids) is not int or not 16 <= pids <= 1 << 22:
        raise InvalidArgument(
            f"pids={shown(pids)} is no number of processes; give an int from 16 to {1 << 22}"
        )


class NotHere(NotAvailable):
    """Something must be installed or started on this machine first, so the fault is not retryable."""


class WorkspaceLost(SessionLost):
    """The workspace has died in the middle of an evaluation."""
