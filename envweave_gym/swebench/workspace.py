"""The interface of workspaces: private copies of a repository in which commands run and files are written.

:mod:`~envweave_gym.swebench.docker_evaluation` and :mod:`~envweave_gym.swebench.local_evaluation` implement it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from envweave_gym.core.arguments import check_int
from envweave_gym.core.faults import NotAvailable, SessionLost

SIGNALS = 128
"""Exit codes of a shell above this mean that a signal killed the command."""


@dataclass(frozen=True)
class Ran:
    """The output and the exit code of one command in a workspace."""

    output: str
    """Its stdout and stderr, interleaved as written."""
    code: int
    """The exit code, as a shell reports it; without meaning if ``timed_out``."""
    timed_out: bool = False


class Workspace(Protocol):
    """One copy of a repository at its base commit, for one evaluation, with commands confined to it.

    A command that fails is a result: :class:`Ran` has its exit code. A workspace that fails itself raises
    :class:`WorkspaceLost` or ``NotAvailable``, which become faults and never rewards.
    """

    testbed: str
    """The path of the repository, as commands see it."""
    scratch: str
    """The path of a writable folder outside of the repository, as commands see it."""

    def run(self, command: str, timeout: float) -> Ran:
        """Run a line of bash in the repository; after ``timeout`` seconds kill it with all its children."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write the file ``name`` into the folder ``scratch``; the next command sees it."""
        ...

    def adapt_script(self, script: str) -> str:
        """Return the official evaluation script, edited for the paths and programs of this workspace."""
        ...

    def close(self) -> None:
        """Remove the workspace and kill its processes; a second call does nothing."""
        ...


def check_pids(pids: object) -> None:
    """Raise ``InvalidArgument`` unless ``pids``, a limit of processes, is an int from 16 to 2**22."""
    check_int("pids", pids, "no number of processes", 16, 1 << 22)


class NotHere(NotAvailable):
    """Raised if something must be installed or started on this machine first, so a retry would not help."""


class WorkspaceLost(SessionLost):
    """Raised if a workspace dies in the middle of an evaluation; another attempt may succeed."""
