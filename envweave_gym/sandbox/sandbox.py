"""The class ``Sandbox``: starts a zygote, and forks a worker process from it for each episode of programs."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import Owner
from envweave_gym.sandbox import levels
from envweave_gym.sandbox.execution import ToolThreads
from envweave_gym.sandbox.folders import episode_folder, remove, remove_all, root_folder
from envweave_gym.sandbox.forkserver import ONE_THREAD, ForkServer, Program
from envweave_gym.sandbox.memory_groups import MemoryGroups
from envweave_gym.sandbox.session import Session
from envweave_gym.sandbox.setup import Setup
from envweave_gym.sandbox.worker_copies import WorkerResources, forked
from envweave_gym.sandbox.worker_process import WorkerDied, WorkerProcess

# -I ignores PYTHONPATH, so the folder of "inside" comes as an argument. Its modules are imported as a package of
# their own: importing this package would import NumPy and Gymnasium into every worker.
_START = "import sys; sys.path[:0] = [sys.argv.pop(1)]; from inside.{} import main; sys.path.pop(0); main()"
_CGROUP_SLACK_BYTES = 64 << 20
"""Bytes added to an episode's memory limit in its cgroup, which also counts the worker and kernel data."""
_ENVIRON = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # the same program iterates over a set in the same order in every episode
    "MALLOC_ARENA_MAX": "2",  # each arena reserves much of the address space, which is limited
    **ONE_THREAD,
}
"""All environment variables of programs; those of this process are not passed on, as they may hold secrets."""
_log = logging.getLogger(__name__)


class Sandbox:
    """Starts one zygote and forks workers from it, some before they are needed, so that episodes open fast."""

    def __init__(self, setup: Setup | None = None, *, ready: int = 1) -> None:
        """Prepare a sandbox whose zygote starts on first use; ``ready`` is the number of workers forked ahead."""
        self.setup = setup or Setup()
        levels.require(self.setup.isolation)
        self._confinement = self.setup.confinement()
        self._user = levels.user_of_namespace(self.setup.isolation, self.setup.python)
        self._ready, self._max_ready = deque[WorkerProcess](), ready
        self._root = root_folder()
        self._cgroups = MemoryGroups(self.setup.limits.memory + _CGROUP_SLACK_BYTES)
        self._forks = ForkServer(self._program())
        self._threads = ToolThreads()
        self._filling, self._owner = threading.Lock(), Owner()
        self.is_closed = False
        self._end = weakref.finalize(self, _end, self._forks, self._cgroups, self._root, self._owner)

    def is_usable(self) -> bool:
        """Return whether the sandbox can open episodes: it is not closed, and this process has created it."""
        return not self.is_closed and self._owner.is_here()

    def open(self) -> Session:
        """Open a sandbox session for a new episode, and fork the next worker in a background thread."""
        if not self._owner.is_here():
            raise NotAvailable("a sandbox belongs to the process that made it; make another here")
        if self.is_closed:
            raise NotAvailable("the sandbox is closed; make another")
        process = self._take_ready() or self._start_worker_with_retry()
        if self._max_ready:
            threading.Thread(target=self.fill, name="sandbox", daemon=True).start()
        copy = partial(_fork, self.setup.limits.output, self._cgroups, self._confinement)
        return Session(process, self.setup.limits, self._threads, copy)

    def _take_ready(self) -> WorkerProcess | None:
        """Return a worker that was forked ahead and is alive, or ``None``; discard dead ones."""
        while self._ready:
            with suppress(IndexError):  # another thread was faster
                process = self._ready.popleft()
                if process.is_alive():
                    return process
                _discard(process)
        return None

    def fill(self) -> None:
        """Fork workers until the wanted number is ready; log the reason and stop if one cannot start."""
        with self._filling:
            while len(self._ready) < self._max_ready and not self.is_closed:
                try:
                    self._ready.append(self._start_worker())
                except (NotAvailable, WorkerDied, OSError) as error:
                    _log.info("no worker was prepared; opening the next episode will raise: %s", error)
                    return

    def _start_worker_with_retry(self) -> WorkerProcess:
        """Start a worker; try a second time if the zygote died during the first, as a new zygote is then started."""
        try:
            return self._start_worker()
        except WorkerDied:
            if self._forks.has_zygote() or self.is_closed:
                raise
            return self._start_worker()

    def _start_worker(self) -> WorkerProcess:
        folder = episode_folder(self._root)
        with ExitStack() as undo:
            given = WorkerResources(folder, self.setup.limits.output, self._cgroups, undo)
            if self._user:
                os.chown(folder, self._user, self._user)
            fork = self._forks.fork(*given.outputs, *given.cgroups)
            undo.callback(fork.connection.close)
            process = given.worker(fork)
            undo.callback(process.close)
            given.close_worker_ends()
            process.send({"op": "begin", "folder": folder, "confinement": self._confinement})
            process.await_hello(is_trusted=True)
            undo.pop_all()
        return process

    def _program(self) -> Program:
        setup, here = self.setup, str(Path(__file__).parent)
        python = [setup.python, "-I", "-u", "-B", "-c"]
        command = [*python, _START.format("zygote"), here]
        has_supervisor = setup.isolation == "namespace"
        if has_supervisor:
            trees = [*levels.trees_of(setup.python), here, *setup.readable]
            namespaces = levels.around(self._root, trees, setup.writable)
            supervisor = [*python, _START.format("zygote_supervisor"), here]
            command = [*supervisor, str(os.getpid()), str(self._user), self._root, *namespaces, *command]
        return Program(
            "inside.worker:prepare",
            list(setup.warm),
            _ENVIRON,
            command=command,
            folder=None if has_supervisor else self._root,
            is_direct=not has_supervisor,
        )

    def close(self) -> None:
        """Kill the zygote with all workers and remove the folders of all episodes."""
        self.is_closed = True
        if self._owner.is_here():
            self._forks.close()  # before the lock: fill() holds it while it waits for a worker to start
            self._threads.close()
            with self._filling:
                while self._ready:
                    _discard(self._ready.pop())
        self._end()


def _fork(output: int, groups: MemoryGroups, rules: dict[str, object], session: Session) -> Session:
    return session.with_process(forked(session.process, output, groups, rules))


def _discard(process: WorkerProcess) -> None:
    process.close()
    remove(process.folder)


def _end(forks: ForkServer, groups: MemoryGroups, root: str, owner: Owner) -> None:
    """End the zygote with its children, and remove cgroups and folders; do nothing in a forked process."""
    if owner.is_here():
        forks.close()
        groups.remove_all()
        remove_all(root)
