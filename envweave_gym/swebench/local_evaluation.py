"""Patches are tried without a container engine: in a copy of the repository, inside the sandbox for programs.

A sandbox of the profile ``shell`` keeps them in: they read the system's programs, their Python and their
copy, write to the copy alone, and reach no network and no other process. There are no sockets at all and no
memory to share, which containers have: tests that need those fail here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.core.sizes import memory_of
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.sandbox import Execution, Lease, Limits, Session, Setup, levels
from envweave_gym.sandbox.worker_process import WorkerDied
from envweave_gym.swebench.checkouts import GITHUB, Checkout, Recipe
from envweave_gym.swebench.workspace import NotHere, Ran, WorkspaceLost, check_pids

LONGEST_LOG = 32 << 20
"""What writes more bytes is killed."""
LEVELS = ("landlock", "namespace", "container")
"""How well patches may be kept in; what leaves them the network or the files of the machine is not here."""
_COPYING = 600.0
_GRACE = 0.5
_LINE = ["/bin/bash", "-c", 'exec 2>&1 && cd -- "$0" && exec bash -c "$1"']
_PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TESTBED = "/testbed"
_LEFT_OUT = re.compile(
    r"source /opt/miniconda3/bin/activate|conda activate testbed"  # there is an environment already
    r"|python -m pip install .*"  # it is installed already
    r"|git status|git show|git -c core\.fileMode=false diff \w+"  # nobody reads that
    r"|sed -i '/en_US\.UTF-8/.*|export (?:LANG|LANGUAGE|LC_ALL)=\S+"  # that is no locale of this machine
)
_MOVED = re.compile(rf"^(cd|git config --global --add safe\.directory) {_TESTBED}/?$")


@dataclass(frozen=True)
class Options:
    """What places are like; ``repos``, ``requirements`` and ``cache`` are those of :class:`Recipe`."""

    isolation: str = "landlock"
    """A level of the sandbox, which is demanded."""
    repos: str = GITHUB
    requirements: str | None = None
    python: str | None = None
    cache: str | None = None
    memory: int | str = "4g"
    """Each process may have so much."""
    pids: int = 1024
    """Limit of processes, if the host is root."""

    def __post_init__(self) -> None:
        if self.isolation not in LEVELS:
            known = ", ".join(map(repr, LEVELS))
            raise InvalidArgument(
                f"isolation={shown(self.isolation)} does not keep patches in; there are {known}"
            )
        memory_of(self.memory)
        check_pids(self.pids)
        self.recipe(sys.executable if self.python is None else self.python)

    def recipe(self, interpreter: str) -> Recipe:
        """How checkouts are made, with this interpreter."""
        return Recipe(interpreter, self.repos, self.requirements, self.cache)


def open_workspace(instance: Instance, **options: Any) -> LocalWorkspace:
    """A copy of the instance's repository, which is cloned where that was not done before.

    ``options`` are those of :class:`Options`; a level that this machine does not reach is not there.
    """
    given = Options(**options)
    try:
        levels.require(given.isolation)
        interpreter = _interpreter(given.python)
    except NotAvailable as error:
        raise NotHere(str(error)) from None
    recipe = given.recipe(interpreter)
    limits = Limits(
        memory=memory_of(given.memory),
        processes=given.pids,
        files=1024,
        file_size=1 << 30,
        output=LONGEST_LOG,
        most_output=LONGEST_LOG,
    )
    checkout = recipe.checkout(instance)
    setup = Setup(
        isolation=given.isolation,
        profile="shell",
        python=interpreter,
        limits=limits,
        readable=(str(recipe.environments),),
    )
    return LocalWorkspace(checkout, setup)


def _interpreter(given: str | None) -> str:
    """An interpreter that whoever a program runs as can read."""
    if given is not None or os.getuid() != 0:
        return given or sys.executable
    for python in _PYTHONS:
        if os.path.exists(python) and levels.is_for_all(python):
            return python
    raise NotAvailable(
        f"programs are no root, and cannot read {sys.executable}; name an interpreter that everybody can "
        "read with python=, or do not run as root"
    )


class LocalWorkspace:
    """One copy, in the folder of one episode of a sandbox."""

    def __init__(self, checkout: Checkout, setup: Setup) -> None:
        self._lease, self._session, self._place = Lease(setup), None, -1
        try:
            session = self._session = self._lease.open()
            self.testbed, self.scratch = f"{session.folder}/testbed", f"{session.folder}/scratch"
            self._variables = _variables(checkout, self.testbed, self.scratch)
            self._owner = os.stat(session.folder).st_uid
            self._place = _furnished(checkout, self.testbed, self.scratch, self._owner)
        except WorkerDied as error:
            self.close()
            raise WorkspaceLost(f"there is no place for an evaluation: {error}") from None
        except BaseException:
            self.close()
            raise

    _session: Session | None

    def run(self, command: str, timeout: float) -> Ran:
        """Run it in the sandbox; after its time all that it has started is killed from here.

        The sandbox has a clock too, for who has stopped or killed the process that it asks.
        """
        session, line = self._there(), [*_LINE, self.testbed, command]
        clock = _Clock(timeout, session.process.kill_children)
        try:
            done = session.shell(line, timeout=timeout + _GRACE, env=self._variables)
        except (NotAvailable, WorkerDied) as error:
            raise WorkspaceLost(f"the sandbox of an evaluation is gone: {error}") from None
        finally:
            is_late = clock.stop()
        if done.error_type and not done.state_lost:
            session.process.kill_children()
        return Ran(done.stdout, _code(done), timed_out=is_late)

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the folder that was made for that, wherever a program has moved it meanwhile."""
        self._there()
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._place)
            with open(os.open(name, _WRITE, 0o644, dir_fd=self._place), "wb") as file:
                file.write(content)
                if os.getuid() == 0:
                    os.fchown(file.fileno(), self._owner, self._owner)
        except OSError as error:
            raise WorkspaceLost(f"{name} cannot be put into the place of an evaluation: {error}") from None

    def adapted(self, script: str) -> str:
        """The official script without what only its image needs, and with the folder of this copy."""
        kept = [line for line in script.split("\n") if not _LEFT_OUT.fullmatch(line)]
        return "\n".join(_MOVED.sub(rf"\1 {self.testbed}", line) for line in kept)

    def close(self) -> None:
        """Remove the copy, with all that runs in it."""
        session, self._session = self._session, None
        if self._place >= 0:
            os.close(self._place)
            self._place = -1
        if session is not None:
            session.close()
        self._lease.close()

    def _there(self) -> Session:
        if self._session is None:
            raise WorkspaceLost("the place of an evaluation is closed; open another")
        return self._session


class _Clock:
    """Calls a function after some seconds, unless it is stopped before."""

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        self._end, self._is_late = end, False
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.start()

    def _ring(self) -> None:
        self._is_late = True
        self._end()

    def stop(self) -> bool:
        """Stop it; whether it was too late for that."""
        self._timer.cancel()
        self._timer.join()
        return self._is_late


def _code(done: Execution) -> int:
    """An exit code, as a shell tells how a program ended; what was ended from outside was killed."""
    code = done.value if isinstance(done.value, int) and not done.error_type else -signal.SIGKILL
    return code if code >= 0 else 128 - code


def _variables(checkout: Checkout, testbed: str, scratch: str) -> dict[str, str]:
    """The environment: the Python of the instance first, and its modules from the copy."""
    found = {
        "PATH": f"{checkout.environment}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(checkout.environment),
        "HOME": scratch,
        "TMPDIR": scratch,
    }
    if checkout.paths:
        found["PYTHONPATH"] = ":".join(os.path.normpath(f"{testbed}/{path}") for path in checkout.paths)
    return found


def _furnished(checkout: Checkout, testbed: str, scratch: str, owner: int) -> int:
    """Copy the repository and make the folder beside it, both the program's own; that folder, opened."""
    os.mkdir(scratch, 0o755)
    copied = ["cp", "-a", "--reflink=auto", str(checkout.tree), testbed]
    given = ["chown", "-R", f"{owner}:{owner}", testbed, scratch]
    for command in (copied, given) if os.getuid() == 0 else (copied,):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COPYING, check=False)
        if done.returncode:
            raise NotAvailable(f"the repository cannot be copied: {done.stderr.strip()[-500:]}")
    return os.open(scratch, _FOLDER)
