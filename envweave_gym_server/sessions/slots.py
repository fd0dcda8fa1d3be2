"""So many at once and no more: who finds no place is told how many there are."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from envweave_gym.core.faults import AtCapacity


class Places:
    """``most`` places; ``full`` says what they are taken for, and what to do about it."""

    def __init__(self, most: int, full: str, patience: float = 0.0) -> None:
        self._most, self._full, self._patience = most, full, patience
        self._taken = 0
        self._freed = threading.Condition()

    def __len__(self) -> int:
        return self._taken

    @contextmanager
    def one(self) -> Generator[None]:
        """Take a place; where there is none, after so many seconds of patience, refuse."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._taken < self._most, self._patience):
                raise AtCapacity(f"{self._most} of {self._most} {self._full}")
            self._taken += 1
        try:
            yield
        finally:
            with self._freed:
                self._taken -= 1
                self._freed.notify()
