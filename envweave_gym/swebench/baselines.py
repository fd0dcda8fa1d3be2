"""Which part of an instance's tests passes without any patch: looked at once, and kept."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from envweave_gym.core.faults import Fault
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.evaluation import Trial, baseline

MOST = 4096
"""Size of the LRU cache."""


class Baselines:
    """What passes without a patch, by the instance and how it is tried."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._looking: WeakValueDictionary[bytes, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def before(self, instance: Instance, trial: Trial) -> float | Fault:
        """Which part of the tests that the gold patch makes pass does so by then, or why nobody can say.

        Where there are no results, as of tests that do not end, that is none; it is looked at again the next
        time, as those may have had bad luck.
        """
        key = _key(instance, trial)
        with self._lock:
            looking = self._looking.setdefault(key, threading.Lock())
        with looking:
            if (known := self._kept(key)) is not None:
                return known
            found = baseline(instance, trial)
            if found.fault is not None:
                return found.fault
            if not found.problem:
                self._keep(key, found.f2p)
            return found.f2p

    def _kept(self, key: bytes) -> float | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def _keep(self, key: bytes, f2p: float) -> None:
        with self._lock:
            self._known[key] = f2p
            while len(self._known) > self._most:
                self._known.popitem(last=False)


def _key(instance: Instance, trial: Trial) -> bytes:
    """All that decides what the tests say; which of those that pass already count does not."""
    way = repr((trial.backend, trial.timeout, sorted(trial.options.items())))
    return hashlib.sha256(msgspec.json.encode((instance, way))).digest()


BASELINES = Baselines()
"""Those of this process."""
