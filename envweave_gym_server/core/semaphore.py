"""Semaphore with a limit, which raises ``AtCapacity`` when it is full."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from envweave_gym.core.faults import AtCapacity


class Semaphore:
    """Semaphore with ``limit`` slots; ``full`` completes the message of ``AtCapacity``."""

    def __init__(self, limit: int, full: str, patience_s: float = 0.0) -> None:
        self._limit, self._full, self._patience_s = limit, full, patience_s
        self._taken = 0
        self._freed = threading.Condition()

    def __len__(self) -> int:
        return self._taken

    @contextmanager
    def one(self) -> Generator[None]:
        """Hold a slot in a ``with`` block; if none is free within ``patience_s`` seconds, raise ``AtCapacity``."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._taken < self._limit, self._patience_s):
                raise AtCapacity(f"{self._limit} of {self._limit} {self._full}")
            self._taken += 1
        try:
            yield
        finally:
            with self._freed:
                self._taken -= 1
                self._freed.notify()
