"""The sandboxes of this process, shared by all environments that ask for the same; the last one ends it."""

from __future__ import annotations

import os
import threading
import weakref

from envweave_gym.sandbox.sandbox import Sandbox, Setup
from envweave_gym.sandbox.session import Session

_sandboxes: dict[Setup, tuple[Sandbox, int]] = {}
_lock = threading.RLock()  # the same thread may come again: collecting garbage ends leases


class Lease:
    """A share of a sandbox, which is made when the first episode is opened, here or in a forked process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._pid = 0
        self._end: weakref.finalize[[Setup, int], Lease] | None = None

    def open(self) -> Session:
        """A new episode."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            _taken(self.setup)
            self._end = weakref.finalize(self, _given_back, self.setup, self._pid)
        with _lock:
            sandbox = _sandboxes[self.setup][0]
        return sandbox.open()

    def close(self) -> None:
        """Want no more of it, unless another episode is opened."""
        if self._end is not None:
            self._end()
        self._pid, self._end = 0, None


def _taken(setup: Setup) -> None:
    with _lock:
        sandbox, users = _sandboxes.get(setup) or (Sandbox(setup), 0)
        _sandboxes[setup] = sandbox, users + 1


def _given_back(setup: Setup, pid: int) -> None:
    if pid != os.getpid():
        return
    with _lock:
        sandbox, users = _sandboxes[setup]
        if users > 1:
            _sandboxes[setup] = sandbox, users - 1
            return
        del _sandboxes[setup]
    sandbox.close()


def _forget_all() -> None:
    """A process that was forked has no sandbox, and a lock that nobody holds."""
    global _lock
    _sandboxes.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_all)
