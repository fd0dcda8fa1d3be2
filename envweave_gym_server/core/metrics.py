"""Counters of calls, durations, errors and OOM kills; a step takes no lock for them."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from envweave_gym.wire.messages import Ask, Create, Reset, Step

_TIMED = (Reset, Step, Ask)
BOUNDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of the histogram's buckets, in seconds."""


class Tally:
    """Counters of one session.

    Only the holder of the session's lock writes here, so they need no lock of their own.
    """

    def __init__(self) -> None:
        self.times: dict[type[Any], list[float]] = {kind: [0] * (len(BOUNDS) + 2) for kind in _TIMED}
        """For each kind of call the count of each histogram bucket, and last the sum of the seconds."""
        self.calls: Counter[tuple[type[Any], str]] = Counter()

    def took(self, kind: type[Any], seconds: float) -> None:
        """Count a call that an environment has executed, with its duration."""
        times = self.times[kind]
        times[bisect_left(BOUNDS, seconds)] += 1
        times[-1] += seconds

    def add(self, other: Tally) -> None:
        """Add the counters of another session.

        That session may be counting meanwhile, so its dict is copied in one atomic operation.
        """
        self.calls.update(dict(other.calls))
        for kind, times in other.times.items():
            self.times[kind] = [sum(pair) for pair in zip(self.times[kind], times, strict=True)]


class Totals(NamedTuple):
    """Sums over all sessions at one moment."""

    tally: Tally
    ended: dict[str, int]
    """Number of sessions that ended, by reason."""
    errors: dict[str, int]
    """Number of responses that reported an error, by HTTP status."""


class Metrics:
    """Counters of all sessions of one server, summed up when they are read."""

    def __init__(self) -> None:
        self._tallies: set[Tally] = set()
        self._ended, self._reasons, self._errors = Tally(), Counter[str](), Counter[str]()
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """For each gauge its help text, and a function that reads its current value."""
        self._lock = threading.Lock()

    def begin(self) -> Tally:
        """Return the counters of a new session, and count its create."""
        tally = Tally()
        with self._lock:
            self._tallies.add(tally)
            self._ended.calls[Create, "done"] += 1
        return tally

    def end(self, tally: Tally, why: str) -> None:
        """Add the counters of a session that ended; ``why`` is ``closed``, ``idle`` or ``stopped``."""
        with self._lock:
            self._tallies.discard(tally)
            self._ended.add(tally)
            self._reasons[why] += 1

    def refused(self, kind: type[Any]) -> None:
        """Count a refused call that has no session, such as a create."""
        with self._lock:
            self._ended.calls[kind, "refused"] += 1

    def answered(self, status: int) -> None:
        """Count a response that reports an error."""
        with self._lock:
            self._errors[str(status)] += 1

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge: ``value()`` is called whenever the metrics are read."""
        self.gauges[name] = text, value

    def totals(self) -> Totals:
        """Return the sums over all sessions now."""
        with self._lock:
            total = Tally()
            for tally in (self._ended, *self._tallies):
                total.add(tally)
            return Totals(total, dict(self._reasons), dict(self._errors))


TOO_LARGE = "it took more memory than there is; give the server more, as with memory="
"""Reason given when a process was killed because memory ran out."""
_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Files with the OOM-kill counter, of version 2 and version 1 of the kernel's control groups."""
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills() -> int:
    """Return how many processes were killed for lack of memory so far; 0 if the kernel does not count them."""
    for path in _COUNTS:
        try:
            found = _KILLED.search(Path(path).read_text())
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0
