"""The sandboxes of this process, shared by all environments that ask for the same; the last one ends it."""

from __future__ import annotations

import os
import threading
import weakref

from envweave_gym.sandbox.sandbox import Sandbox, Setup
from envweave_gym.sandbox.session import Session

_lock = threading.RLock()  # the same thread may come again: collecting garbage ends leases


class _Used:
    """A sandbox, once an episode was opened in it, and how many share it."""

    def __init__(self) -> None:
        self.sandbox: Sandbox | None = None
        self.users = 0


_used: dict[Setup, _Used] = {}


class Lease:
    """A share of a sandbox, which is made when the first episode is opened, here or in a forked process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._pid = 0
        self._end: weakref.finalize[[Setup, int], Lease] | None = None

    def hold(self) -> None:
        """Have the sandbox last while this does, whoever else lets go of it."""
        pid = os.getpid()
        if self._pid != pid:
            with _lock:
                used = _used.setdefault(self.setup, _Used())
                used.users += 1
                _used[self.setup] = used  # again, as its last user may have let go since it was found
            self._end = weakref.finalize(self, _given_back, self.setup, pid)
            self._pid = pid

    def open(self) -> Session:
        """A new episode."""
        self.hold()
        return _sandbox_of(self.setup).open()

    def close(self) -> None:
        """Want no more of it, unless another episode is opened."""
        if self._end is not None:
            self._end()
        self._pid, self._end = 0, None


def _sandbox_of(setup: Setup) -> Sandbox:
    """The sandbox of those who hold it; another where it was closed."""
    with _lock:
        used = _used[setup]
        if used.sandbox is None or used.sandbox.is_closed:
            used.sandbox = Sandbox(setup)
        return used.sandbox


def _given_back(setup: Setup, pid: int) -> None:
    if pid != os.getpid():
        return
    with _lock:
        used = _used[setup]
        used.users -= 1
        if used.users:
            return
        del _used[setup]
    if used.sandbox is not None:
        used.sandbox.close()


def _forget_all() -> None:
    """A process that was forked has no sandbox, and a lock that nobody holds."""
    global _lock
    _used.clear()
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_all)
