"""Swaps the states of the modules ``random`` and ``numpy.random`` around the calls of one environment.

Several suites draw from these process-global generators, so that two of their environments in one process disturb each
other's episodes, and the caller's own draws. With states of its own, an environment plays equal episodes for equal
seeds, and leaves the generators of the process as it found them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from envweave_gym.os_support.process_local import ProcessLocal

WAIT_S = 60.0
"""Seconds to wait while another environment of this process uses the generators: longer than a slow step."""
SEEDS_END = 1 << 32
"""End of the seeds that NumPy's process-global generator takes."""
# Re-entrant: a suite may step one of these environments within a step of another.
_lock = ProcessLocal[Any](threading.RLock)


class OwnGenerators:
    """The states of both generators that belong to one environment; :meth:`in_place` puts them into effect.

    A thread that draws from ``random`` or ``numpy.random`` on its own account while a step runs draws from that
    environment's stream, and so changes its episode. Run the environment in a process of its own
    (``backend="subprocess"``) next to such threads.
    """

    def __init__(self, name: str, wait_s: float = WAIT_S) -> None:
        """Make the states for seed 0; ``name`` is the environment in errors, ``wait_s`` the deadline of the lock."""
        self._name, self._wait_s = name, wait_s
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Set both states to those that ``seed`` gives."""
        self._states: tuple[Any, Any] = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % SEEDS_END).get_state(),
        )

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Use this environment's states within the ``with`` block, and restore the previous ones on exit.

        One environment of a process at a time is in such a block; raise ``TimeoutError`` if the others do not leave
        theirs before the deadline.
        """
        lock = _lock.value
        if not lock.acquire(timeout=self._wait_s):
            raise TimeoutError(
                f"{self._name}: another environment has used this process's random generators for "
                f"{self._wait_s:g} s; run one of them with backend='subprocess'"
            )
        try:
            before = random.getstate(), np.random.get_state()
            _install(self._states)
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                _install(before)
        finally:
            lock.release()


def _install(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
