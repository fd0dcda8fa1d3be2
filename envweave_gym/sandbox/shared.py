"""The sandboxes of this process, shared by all environments that ask for the same; the last one ends it."""

from __future__ import annotations

import threading
import weakref

from envweave_gym.os_support.process_local import Owner, ProcessLocal
from envweave_gym.sandbox.sandbox import Sandbox
from envweave_gym.sandbox.session import Session
from envweave_gym.sandbox.setup import Setup

_lock = ProcessLocal(threading.RLock)  # the same thread may come again: collecting garbage ends leases


class _Used:
    """A sandbox, once an episode was opened in it, and how many share it."""

    def __init__(self) -> None:
        self.sandbox: Sandbox | None = None
        self.users = 0


_used = ProcessLocal(dict[Setup, _Used])


class Lease:
    """A share of a sandbox, which is made when the first episode is opened, here or in a forked process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._owner: Owner | None = None
        self._end: weakref.finalize[[Setup, Owner], Lease] | None = None

    def hold(self) -> None:
        """Have the sandbox last while this does, whoever else lets go of it."""
        if self._owner is None or not self._owner.is_here():
            owner = Owner()
            with _lock.value:
                used = _used.value.setdefault(self.setup, _Used())
                used.users += 1
                _used.value[self.setup] = used  # again, as its last user may have let go since it was found
            self._end = weakref.finalize(self, _given_back, self.setup, owner)
            self._owner = owner

    def open(self) -> Session:
        """A new episode."""
        self.hold()
        return _sandbox_of(self.setup).open()

    def close(self) -> None:
        """Want no more of it, unless another episode is opened."""
        if self._end is not None:
            self._end()
        self._owner = self._end = None


def _sandbox_of(setup: Setup) -> Sandbox:
    """The sandbox of those who hold it; another where it was closed."""
    with _lock.value:
        used = _used.value[setup]
        if used.sandbox is None or used.sandbox.is_closed:
            used.sandbox = Sandbox(setup)
        return used.sandbox


def _given_back(setup: Setup, owner: Owner) -> None:
    if not owner.is_here():
        return
    with _lock.value:
        used = _used.value[setup]
        used.users -= 1
        if used.users:
            return
        del _used.value[setup]
    if used.sandbox is not None:
        used.sandbox.close()
