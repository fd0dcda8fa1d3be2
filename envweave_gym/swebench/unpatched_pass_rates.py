"""Caches the share of an instance's FAIL_TO_PASS tests that pass without any patch.

Rewards subtract it, so that tests which pass anyway earn nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from envweave_gym.core.faults import Fault
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.evaluation import Trial, baseline

MAX_ENTRIES = 4096
"""Default limit of cached pass rates; the least recently used one beyond it is dropped."""


class Baselines:
    """Thread-safe LRU cache of pass rates without a patch, by the instance and the test settings."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._rates: OrderedDict[bytes, float] = OrderedDict()
        self._measuring: WeakValueDictionary[bytes, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rates)

    def pass_rate(self, instance: Instance, trial: Trial) -> float | Fault:
        """Return the share of the FAIL_TO_PASS tests that pass without a patch, from 0.0 to 1.0.

        ``trial`` has the settings of the test run. A workspace that fails gives its fault. A run without results, such
        as one that timed out, counts as 0.0. Neither is cached, so the next call runs the tests again.
        """
        key = _key(instance, trial)
        with self._lock:
            measuring = self._measuring.setdefault(key, threading.Lock())
        with measuring:  # one thread measures an instance, the others wait for its result
            with self._lock:
                if key in self._rates:
                    self._rates.move_to_end(key)
                    return self._rates[key]
            found = baseline(instance, trial)
            if found.fault is not None:
                return found.fault
            if not found.problem:
                with self._lock:
                    self._rates[key] = found.f2p
                    if len(self._rates) > self._max_entries:
                        self._rates.popitem(last=False)
            return found.f2p


def _key(instance: Instance, trial: Trial) -> bytes:
    """Hash the instance and the settings that decide a pass rate; limits of PASS_TO_PASS tests do not."""
    way = repr((trial.backend, trial.timeout, sorted(trial.options.items())))
    return hashlib.sha256(msgspec.json.encode((instance, way))).digest()


BASELINES = Baselines()
"""The cache of this process."""
