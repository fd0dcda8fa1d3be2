"""Runs evaluations without a container engine: in a copy of the repository, by a process of our sandbox.

The sandbox profile ``shell`` confines the commands. They may read the system's programs, their Python and the
copy, write to the copy alone, and reach no network and no other process. Unlike in a container there are no
sockets and no shared memory at all, so tests that need them fail in this way of evaluation.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.core.sizes import memory_of
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.sandbox import Execution, Limits, Session, Setup, SharedSandbox, levels
from envweave_gym.sandbox.worker_process import WorkerDied
from envweave_gym.swebench.checkouts import GITHUB, Checkout, Recipe
from envweave_gym.swebench.workspace import NotHere, Ran, WorkspaceLost, check_pids

MAX_LOG_BYTES = 32 << 20
"""A command that writes more is killed."""
LEVELS = ("landlock", "namespace", "container")
"""The isolation levels that keep patches from the network and from other files."""
_COPY_TIMEOUT_S = 600.0
_GRACE_S = 0.5
# Bash sets $0 and $1 to the words after the script: the folder and the command.
_COMMAND_LINE = ["/bin/bash", "-c", 'exec 2>&1 && cd -- "$0" && exec bash -c "$1"']
_PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TESTBED = "/testbed"
_OMITTED_LINES = re.compile(
    r"source /opt/miniconda3/bin/activate|conda activate testbed"  # PATH has the environment already
    r"|python -m pip install .*"  # the checkout is installed already
    r"|git status|git show|git -c core\.fileMode=false diff \w+"  # output that nobody reads
    r"|sed -i '/en_US\.UTF-8/.*|export (?:LANG|LANGUAGE|LC_ALL)=\S+"  # a locale of the image only
)
_PATH_LINES = re.compile(rf"^(cd|git config --global --add safe\.directory) {_TESTBED}/?$")


@dataclass(frozen=True)
class Options:
    """The isolation and limits of local workspaces, and the fields of :class:`Recipe` for their checkouts."""

    isolation: str = "landlock"
    """The isolation level of the sandbox; a machine that cannot reach it raises ``NotAvailable``."""
    repos: str = GITHUB
    requirements: str | None = None
    python: str | None = None
    cache: str | None = None
    memory: int | str = "4g"
    """Limit for each process, in bytes or as text like ``"4g"``."""
    pids: int = 1024
    """Limit of processes; enforced only if this process is root, which can run each sandbox as its own user."""

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
        """Return the settings for building checkouts with the Python at the path ``interpreter``."""
        return Recipe(interpreter, self.repos, self.requirements, self.cache)


def open_workspace(instance: Instance, **options: Any) -> LocalWorkspace:
    """Open a workspace in a copy of the instance's checkout; ``options`` are the fields of :class:`Options`.

    The checkout is built first if it is not in the cache. Raise :class:`NotHere` if this machine cannot reach
    the isolation level.
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
        output=MAX_LOG_BYTES,
        most_output=MAX_LOG_BYTES,
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
    """Return the path of an interpreter that sandboxed programs can read; ``given``, if it is not None.

    A process that is root runs them as another user, which may be unable to read ``sys.executable``.
    """
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
    """A :class:`~envweave_gym.swebench.workspace.Workspace` in the folder of one sandbox session."""

    def __init__(self, checkout: Checkout, setup: Setup) -> None:
        self._sandbox, self._session, self._scratch_fd = SharedSandbox(setup), None, -1
        try:
            session = self._session = self._sandbox.open()
            self.testbed, self.scratch = f"{session.folder}/testbed", f"{session.folder}/scratch"
            self._variables = _variables(checkout, self.testbed, self.scratch)
            self._owner = os.stat(session.folder).st_uid
            self._scratch_fd = _copy(checkout, self.testbed, self.scratch, self._owner)
        except WorkerDied as error:
            self.close()
            raise WorkspaceLost(f"the sandbox of an evaluation cannot be started: {error}") from None
        except BaseException:
            self.close()
            raise

    _session: Session | None

    def run(self, command: str, timeout: float) -> Ran:
        """Run a line of bash in the sandbox; a timer of this process kills its processes after ``timeout`` s.

        The sandbox has a longer time limit of its own, in case a program has stopped or killed the worker.
        """
        session, line = self._require_session(), [*_COMMAND_LINE, self.testbed, command]
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            session.process.kill_children()

        timer = threading.Timer(timeout, kill)
        timer.start()
        try:
            done = session.shell(line, timeout=timeout + _GRACE_S, env=self._variables)
        except (NotAvailable, WorkerDied) as error:
            raise WorkspaceLost(f"the sandbox of an evaluation is gone: {error}") from None
        finally:
            timer.cancel()
            timer.join()
        if done.error_type and not done.state_lost:
            session.process.kill_children()
        return Ran(done.stdout, _code(done), timed_out=is_late.is_set())

    def write(self, name: str, content: bytes) -> None:
        """Write a file into the folder ``scratch``, which is held open as a descriptor.

        A program may have moved that folder, or have put a symbolic link in its place.
        """
        self._require_session()
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._scratch_fd)
            with open(os.open(name, _WRITE, 0o644, dir_fd=self._scratch_fd), "wb") as file:
                file.write(content)
                if os.getuid() == 0:
                    os.fchown(file.fileno(), self._owner, self._owner)
        except OSError as error:
            raise WorkspaceLost(
                f"{name} cannot be written to the workspace of an evaluation: {error}"
            ) from None

    def adapt_script(self, script: str) -> str:
        """Return the official script without the lines for its image, and with the path of this copy."""
        kept = [line for line in script.split("\n") if not _OMITTED_LINES.fullmatch(line)]
        return "\n".join(_PATH_LINES.sub(rf"\1 {self.testbed}", line) for line in kept)

    def close(self) -> None:
        """Remove the copy and kill its processes."""
        session, self._session = self._session, None
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1
        if session is not None:
            session.close()
        self._sandbox.close()

    def _require_session(self) -> Session:
        if self._session is None:
            raise WorkspaceLost("the workspace of an evaluation is closed; open another")
        return self._session


def _code(done: Execution) -> int:
    """Return the exit code as a shell reports it: 128 plus the signal number for a killed program."""
    code = done.value if isinstance(done.value, int) and not done.error_type else -signal.SIGKILL
    return code if code >= 0 else 128 - code


def _variables(checkout: Checkout, testbed: str, scratch: str) -> dict[str, str]:
    """Return environment variables that put the instance's Python and the modules of the copy first."""
    found = {
        "PATH": f"{checkout.environment}/bin:/usr/local/bin:/usr/bin:/bin",
        "VIRTUAL_ENV": str(checkout.environment),
        "HOME": scratch,
        "TMPDIR": scratch,
    }
    if checkout.paths:
        found["PYTHONPATH"] = ":".join(os.path.normpath(f"{testbed}/{path}") for path in checkout.paths)
    return found


def _copy(checkout: Checkout, testbed: str, scratch: str, owner: int) -> int:
    """Copy the repository to ``testbed`` and create ``scratch``, both owned by the user ID ``owner``.

    Return the descriptor of ``scratch``.
    """
    os.mkdir(scratch, 0o755)
    copy = ["cp", "-a", "--reflink=auto", str(checkout.tree), testbed]
    chown = ["chown", "-R", f"{owner}:{owner}", testbed, scratch]
    for command in (copy, chown) if os.getuid() == 0 else (copy,):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COPY_TIMEOUT_S, check=False)
        if done.returncode:
            raise NotAvailable(f"the repository cannot be copied: {done.stderr.strip()[-500:]}")
    return os.open(scratch, _FOLDER)
