"""Gives episodes of untrusted Python, each in a process that has given up what it does not need."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.sandbox import levels
from envweave_gym.sandbox.folders import copied, episode_folder, root_folder
from envweave_gym.sandbox.forkserver import ONE_THREAD, ForkServer, Program
from envweave_gym.sandbox.process import WorkerDied, WorkerProcess
from envweave_gym.sandbox.result import Limits
from envweave_gym.sandbox.session import Session

PROFILES = ("code", "shell")
"""``code`` starts no process; ``shell`` may, for tests and for git."""
_START = (
    "import sys; sys.path[:0] = [sys.argv.pop(1)]; from inside.zygote import main; sys.path.pop(0); main()"
)
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
_PROGRAMS = ("/bin", "/usr", "/etc")
_TOOLS_AT_ONCE = 32
_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", **ONE_THREAD}
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
        self._ready, self._most = deque[WorkerProcess](), ready
        self._root = root_folder()
        self._forks = ForkServer(self._program())
        self._threads = ThreadPoolExecutor(_TOOLS_AT_ONCE, "tool")
        self._filling, self._is_closed, self._owner = threading.Lock(), False, os.getpid()
        self._policy = _policy(self.setup)
        self._end = weakref.finalize(self, _end, self._forks, self._root, self._owner)

    @property
    def level(self) -> str:
        """The level that is reached, which is the one that was wanted."""
        return self.setup.isolation

    def open(self) -> Session:
        """A new episode; the next worker is made ready meanwhile."""
        if os.getpid() != self._owner:
            raise NotAvailable("a sandbox belongs to the process that made it; make another here")
        try:
            process = self._ready.popleft()
        except IndexError:
            process = self._started()
        if self._most:
            threading.Thread(target=self._fill, name="sandbox", daemon=True).start()
        return self._session(process)

    def fill(self) -> None:
        """Have as many workers ready as there are to be."""
        self._fill()

    def _fill(self) -> None:
        with self._filling:
            while len(self._ready) < self._most and not self._is_closed:
                try:
                    self._ready.append(self._started())
                except (NotAvailable, WorkerDied, OSError) as error:
                    _log.info("no worker is made ready, which who opens the next episode is told: %s", error)
                    return

    def _session(self, process: WorkerProcess) -> Session:
        return Session(process, self.setup.limits, self._threads, self._copied)

    def _started(self) -> WorkerProcess:
        folder = episode_folder(self._root)
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        try:
            fork = self._forks.fork(theirs_out, theirs_err)
        finally:
            os.close(theirs_out)
            os.close(theirs_err)
        process = WorkerProcess(fork, out, err, folder, self.setup.limits)
        process.send({"op": "begin", "folder": folder, "policy": self._policy})
        process.meet()
        return process

    def _copied(self, session: Session) -> Session:
        """A session that goes on from where another is, in a process and a folder of its own."""
        process = session.process
        process.thaw()
        if process.threads() > 1:
            raise NotAvailable("a thread of the program goes on, so it cannot be forked; let it end first")
        folder = copied(process.folder)
        ours, theirs = socket.socketpair()
        (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
        asks = process.forks and process.forks.copy()
        copy = WorkerProcess(process.fork.another(ours), out, err, folder, self.setup.limits, asks)
        try:
            process.send({"op": "fork", "folder": folder, "seed": int.from_bytes(os.urandom(4))})
            process.await_("ready")
            if process.forks is not None:
                process.forks.allow_a_copy()
            process.send_descriptors([theirs.fileno(), theirs_out, theirs_err])
            process.await_("forked")
        finally:
            if process.forks is not None:
                process.forks.allow_none()
            theirs.close()
            os.close(theirs_out)
            os.close(theirs_err)
        copy.fork.known(copy.meet())
        copy.layers = process.layers
        process.freeze()
        return session.like(copy)

    def _program(self) -> Program:
        setup, here = self.setup, str(Path(__file__).parent)
        command = [setup.python, "-I", "-u", "-B", "-c", _START, here]
        is_around = setup.isolation == "namespace"
        if is_around:
            command = [
                *levels.around(setup.python, self._root, setup.readable, setup.writable),
                *command,
            ]
        return Program(
            "inside.worker:prepare",
            list(setup.warm),
            _ENVIRON,
            command=command,
            adopts=True,
            folder=self._root,
            is_direct=not is_around,
        )

    def close(self) -> None:
        """End all episodes, and leave nothing behind."""
        self._is_closed = True
        if os.getpid() == self._owner:
            self._threads.shutdown(wait=False, cancel_futures=True)
            with self._filling:
                while self._ready:
                    self._ready.pop().close()
        self._end()


def _policy(setup: Setup) -> dict[str, Any]:
    """What every worker puts over itself."""
    system = _SYSTEM if setup.profile == "code" else (*_SYSTEM, *_PROGRAMS)
    limits = {name: getattr(setup.limits, name) for name in ("memory", "file_size", "files", "processes")}
    return {
        "level": levels.inner(setup.isolation),
        "profile": setup.profile,
        "drops_user": os.getuid() == 0 and levels.is_for_all(setup.python),
        "readable": [*system, *levels.trees_of(setup.python), *setup.readable],
        "writable": list(setup.writable),
        **limits,
    }


def _end(forks: ForkServer, root: str, owner: int) -> None:
    """End the zygote, with all that it has forked; who was forked from the owner has no say in this."""
    if os.getpid() == owner:
        forks.close()
        shutil.rmtree(root, ignore_errors=True)
