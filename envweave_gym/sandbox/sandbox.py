"""Gives episodes of untrusted Python, each in a process that has given up what it does not need."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_local import Owner
from envweave_gym.sandbox import levels
from envweave_gym.sandbox.folders import copied, episode_folder, remove, remove_all, root_folder
from envweave_gym.sandbox.forkserver import ONE_THREAD, ForkServer, Program
from envweave_gym.sandbox.inside import confinement
from envweave_gym.sandbox.memory_groups import MemoryGroup, MemoryGroups
from envweave_gym.sandbox.output import Output
from envweave_gym.sandbox.process import WorkerDied, WorkerProcess
from envweave_gym.sandbox.result import Limits
from envweave_gym.sandbox.session import Session
from envweave_gym.sandbox.threads import Threads

PROFILES = ("code", "shell")
"""``code`` starts no process; ``shell`` may, for tests and for git."""
_START = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from inside.{} import main; sys.path.pop(0); main()"
_SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/etc/ssl",
    "/etc/mime.types",
    "/usr/share/ca-certificates",
)
_UNCOUNTED = 64 << 20
"""Bytes that the cgroup of an episode has beyond its limit, for the worker and what the kernel counts."""
_PROGRAMS = ("/bin", "/usr", "/etc")
_ENVIRON = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",  # of the addresses there are, each arena takes a lot
    **ONE_THREAD,
}
"""Nothing of this process's own, which may have secrets there."""
_log = logging.getLogger(__name__)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is wanted of a sandbox; who wants the same shares one."""

    isolation: str = "landlock"
    """How well programs are kept in: ``process``, ``landlock``, ``namespace`` or ``container``; see
    ``docs/sandbox.md``."""
    profile: str = "code"
    """``code``, or ``shell`` for programs that start others."""
    limits: Limits = Limits()
    python: str = sys.executable
    """The interpreter."""
    warm: tuple[str, ...] = ()
    """Modules that are imported once for all."""
    readable: tuple[str, ...] = ()
    """Folders that programs may read, beside the interpreter's."""
    writable: tuple[str, ...] = ()
    """Folders that they may write to, beside their own."""

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            known = " and ".join(map(repr, PROFILES))
            raise InvalidArgument(f"profile={shown(self.profile)} is unknown; there are {known}")
        for name in ("readable", "writable"):
            for path in getattr(self, name):
                if not os.path.isabs(path):
                    raise InvalidArgument(f"{name}: {shown(path)} is no absolute path")


class Sandbox:
    """Starts workers from one zygote, and keeps some ready."""

    def __init__(self, setup: Setup | None = None, *, ready: int = 1) -> None:
        """``ready`` workers wait for the next episodes."""
        self.setup = setup or Setup()
        levels.require(self.setup.isolation)
        self._confinement = _confinement(self.setup)
        self._user = levels.user_of_namespace(self.setup.isolation, self.setup.python)
        self._ready, self._most = deque[WorkerProcess](), ready
        self._root = root_folder()
        self._memory = MemoryGroups(self.setup.limits.memory + _UNCOUNTED)
        self._forks = ForkServer(self._program())
        self._threads = Threads()
        self._filling, self._owner = threading.Lock(), Owner()
        self.is_closed = False
        self._end = weakref.finalize(self, _end, self._forks, self._memory, self._root, self._owner)

    @property
    def level(self) -> str:
        """The level that is reached, which is the one that was wanted."""
        return self.setup.isolation

    def open(self) -> Session:
        """A new episode; the next worker is made ready meanwhile."""
        if not self._owner.is_here():
            raise NotAvailable("a sandbox belongs to the process that made it; make another here")
        if self.is_closed:
            raise NotAvailable("the sandbox is closed; make another")
        process = self._waiting() or self._started_twice()
        if self._most:
            threading.Thread(target=self.fill, name="sandbox", daemon=True).start()
        return Session(process, self.setup.limits, self._threads, self._copied)

    def _waiting(self) -> WorkerProcess | None:
        """One that is ready and has not died of that."""
        while self._ready:
            with suppress(IndexError):  # somebody else was faster
                process = self._ready.popleft()
                if process.is_there():
                    return process
                _dropped(process)
        return None

    def fill(self) -> None:
        """Have as many workers ready as there are to be."""
        with self._filling:
            while len(self._ready) < self._most and not self.is_closed:
                try:
                    self._ready.append(self._started())
                except (NotAvailable, WorkerDied, OSError) as error:
                    _log.info(
                        "no worker was prepared, and opening the next episode will raise the same: %s", error
                    )
                    return

    def _started_twice(self) -> WorkerProcess:
        """A new worker; another one where the zygote is killed meanwhile."""
        try:
            return self._started()
        except WorkerDied:
            if self._forks.has_zygote() or self.is_closed:
                raise
            return self._started()

    def _started(self) -> WorkerProcess:
        folder = episode_folder(self._root)
        with ExitStack() as undo:
            undo.callback(remove, folder)
            if self._user:
                os.chown(folder, self._user, self._user)
            out, err = self._outputs(undo)
            group, entrance = self._group(undo)
            fork = self._forks.fork(out.theirs, err.theirs, *entrance)
            undo.callback(fork.connection.close)
            process = WorkerProcess(fork, out, err, folder)
            process.memory = group
            undo.callback(process.close)
            out.give()
            err.give()
            if group is not None:
                group.give()
            process.send({"op": "begin", "folder": folder, "confinement": self._confinement})
            process.meet(is_trusted=True)
            undo.pop_all()
        return process

    def _group(self, undo: ExitStack) -> tuple[MemoryGroup | None, list[int]]:
        """A memory cgroup and the descriptor that one enters it by, where groups can be made."""
        group = self._memory.new()
        if group is None:
            return None, []
        undo.callback(group.remove)
        return group, [group.descriptor]

    def _outputs(self, undo: ExitStack) -> tuple[Output, Output]:
        most = self.setup.limits.output
        return undo.enter_context(closing(Output(most))), undo.enter_context(closing(Output(most)))

    def _copied(self, session: Session) -> Session:
        """A session that goes on from where another is, in a process and a folder of its own."""
        process = session.process
        process.thaw()
        try:
            if process.threads() > 1:
                raise NotAvailable("a thread of the program goes on, so it cannot be forked; let it end")
            copy = self._copy(process)
        finally:
            process.freeze()
        copy.freeze()
        copy.layers = process.layers
        return session.like(copy)

    def _copy(self, process: WorkerProcess) -> WorkerProcess:
        folder = copied(process.folder)
        with ExitStack() as undo:
            undo.callback(remove, folder)
            out, err = self._outputs(undo)
            group, entrance = self._group(undo)
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                fork = process.fork.expect(ours)
                undo.callback(fork.give_up)
                copy = WorkerProcess(fork, out, err, folder, process.forks and process.forks.shared())
                copy.memory = group
                undo.callback(copy.close)
                undo.callback(fork.give_up)  # first, so that its end is not waited for
                with self._rules_of(folder) as rules:
                    given = [theirs.fileno(), out.theirs, err.theirs]
                    self._order_a_copy(process, given, rules, entrance)
            out.give()
            err.give()
            if group is not None:
                group.give()
            self._begin_copy(copy)
            undo.pop_all()
        return copy

    @contextmanager
    def _rules_of(self, folder: str) -> Generator[list[int]]:
        """The descriptor of the rules for a copy that works in this folder; none where it needs none."""
        made = confinement.ruleset(self._confinement, folder)
        try:
            yield [] if made is None else [made]
        finally:
            if made is not None:
                os.close(made)

    def _begin_copy(self, copy: WorkerProcess) -> None:
        try:
            copy.send({"op": "begin", "folder": copy.folder, "seed": int.from_bytes(os.urandom(4))})
            copy.meet()
            copy.fork.adopt(copy.inner_pid())
        except (WorkerDied, OSError) as error:
            raise NotAvailable(f"the episode cannot be forked: {error}") from None

    def _order_a_copy(
        self, process: WorkerProcess, given: list[int], rules: list[int], groups: list[int]
    ) -> None:
        process.send({"op": "fork", "rulesets": len(rules), "groups": len(groups)})
        process.await_("ready")
        process.allow_a_copy()
        try:
            process.send_descriptors([*given, *rules, *groups])
            process.await_("forked")
        finally:
            process.allow_none()
            process.must_have_forked_nothing()

    def _program(self) -> Program:
        setup, here = self.setup, str(Path(__file__).parent)
        python = [setup.python, "-I", "-u", "-B", "-c"]
        command = [*python, _START.format("zygote"), here]
        is_around = setup.isolation == "namespace"
        if is_around:
            trees = [*levels.trees_of(setup.python), here, *setup.readable]
            supervisor = [
                *python,
                _START.format("supervisor"),
                here,
                str(os.getpid()),
                str(self._user),
                self._root,
            ]
            command = [*supervisor, *levels.around(self._root, trees, setup.writable), *command]
        return Program(
            "inside.worker:prepare",
            list(setup.warm),
            _ENVIRON,
            command=command,
            folder=None if is_around else self._root,
            is_direct=not is_around,
        )

    def close(self) -> None:
        """End all episodes, and leave nothing behind."""
        self.is_closed = True
        if self._owner.is_here():
            self._forks.close()  # what is about to start does not any more
            self._threads.close()
            with self._filling:
                while self._ready:
                    _dropped(self._ready.pop())
        self._end()


def _dropped(process: WorkerProcess) -> None:
    process.close()
    remove(process.folder)


def _confinement(setup: Setup) -> dict[str, Any]:
    """What every worker puts over itself."""
    drops_user = os.getuid() == 0 and levels.is_for_all(setup.python)
    if setup.profile == "shell" and os.getuid() == 0 and not drops_user:
        raise NotAvailable(
            f"profile='shell' needs an interpreter that others than root can read, as {setup.python} is not: "
            "give python='/usr/bin/python3', say, or do not run as root"
        )
    system = _SYSTEM if setup.profile == "code" else (*_SYSTEM, *_PROGRAMS)
    limits = {name: getattr(setup.limits, name) for name in ("memory", "file_size", "files", "processes")}
    return {
        "level": levels.inner(setup.isolation),
        "profile": setup.profile,
        "drops_user": drops_user,
        "readable": [*system, *levels.trees_of(setup.python), *setup.readable],
        "writable": list(setup.writable),
        **limits,
    }


def _end(forks: ForkServer, memory: MemoryGroups, root: str, owner: Owner) -> None:
    """End the zygote, with all that it has forked; who was forked from the owner has no say in this."""
    if owner.is_here():
        forks.close()
        memory.remove_all()
        remove_all(root)
