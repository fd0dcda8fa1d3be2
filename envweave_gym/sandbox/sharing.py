"""Shares one sandbox between environments with equal setups; it is closed when its last lease ends."""

from __future__ import annotations

import threading
import weakref

from envweave_gym.os_support.process_local import Owner, ProcessLocal
from envweave_gym.sandbox.sandbox import Sandbox
from envweave_gym.sandbox.session import Session
from envweave_gym.sandbox.setup import Setup

_lock = ProcessLocal(threading.RLock)  # reentrant: garbage collection may end leases at any time


class _Shared:
    """A sandbox, created for the first episode, and the number of its leases."""

    def __init__(self) -> None:
        self.sandbox: Sandbox | None = None
        self.users = 0


_shared = ProcessLocal(dict[Setup, _Shared])


class Lease:
    """A share of the sandbox for a setup; the sandbox is created when the first episode opens.

    In a forked process a lease refers to a sandbox of that process.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._owner: Owner | None = None
        self._end: weakref.finalize[[Setup, Owner], Lease] | None = None

    def hold(self) -> None:
        """Count this lease, so that the sandbox stays open until the lease is closed or garbage-collected."""
        if self._owner is None or not self._owner.is_here():
            owner = Owner()
            with _lock.value:
                shared = _shared.value.setdefault(self.setup, _Shared())
                shared.users += 1
                _shared.value[self.setup] = shared  # a lease that was collected meanwhile may have removed it
            self._end = weakref.finalize(self, _give_back, self.setup, owner)
            self._owner = owner

    def open(self) -> Session:
        """Open the session of a new episode in the shared sandbox."""
        self.hold()
        return _sandbox_of(self.setup).open()

    def close(self) -> None:
        """Give the share back; opening another episode takes it again."""
        if self._end is not None:
            self._end()
        self._owner = self._end = None


def _sandbox_of(setup: Setup) -> Sandbox:
    """Return the shared sandbox of a setup; create it if there is none yet or the last one was closed."""
    with _lock.value:
        shared = _shared.value[setup]
        if shared.sandbox is None or shared.sandbox.is_closed:
            shared.sandbox = Sandbox(setup)
        return shared.sandbox


def _give_back(setup: Setup, owner: Owner) -> None:
    if not owner.is_here():
        return
    with _lock.value:
        shared = _shared.value[setup]
        shared.users -= 1
        if shared.users:
            return
        del _shared.value[setup]
    if shared.sandbox is not None:
        shared.sandbox.close()
