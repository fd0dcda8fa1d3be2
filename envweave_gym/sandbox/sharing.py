"""Shares one sandbox between environments with equal setups; it is closed when the last share ends."""

from __future__ import annotations

import threading

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.os_support.shared_values import Share, SharedValues
from envweave_gym.sandbox.sandbox import Sandbox
from envweave_gym.sandbox.session import Session
from envweave_gym.sandbox.setup import Setup


class _SandboxOnDemand:
    """A sandbox that is created for its first episode, and again in a forked process or after it was closed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.sandbox: Sandbox | None = None
        self._creating = ProcessLocal(threading.Lock)

    def open(self) -> Session:
        """Open a sandbox session for a new episode."""
        with self._creating.value:
            if self.sandbox is None or not self.sandbox.is_usable():
                self.sandbox = Sandbox(self._setup)
            sandbox = self.sandbox
        return sandbox.open()

    def close(self) -> None:
        """Close the sandbox, if there is one."""
        if self.sandbox is not None:
            self.sandbox.close()


_sandboxes = SharedValues[_SandboxOnDemand]()


class SharedSandbox:
    """One user's handle of a sandbox; all handles with equal setups in this process use the same sandbox."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._share: Share[_SandboxOnDemand] | None = None

    def hold(self) -> _SandboxOnDemand:
        """Keep the shared sandbox open until this handle is closed or garbage-collected; return the sandbox."""
        if self._share is None:
            self._share = _sandboxes.take(self.setup, lambda: _SandboxOnDemand(self.setup))
        return self._share.value

    def open(self) -> Session:
        """Open a session for a new episode in the shared sandbox."""
        return self.hold().open()

    def close(self) -> None:
        """Use the sandbox no more; it closes with its last handle. Opening another episode uses it again."""
        share, self._share = self._share, None
        if share is not None:
            share.close()
