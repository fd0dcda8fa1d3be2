"""What a server counts, for Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from envweave_gym.wire.messages import Ask, Close, Create, Reset, Step

_KINDS: dict[type[Any], str] = {Create: "create", Reset: "reset", Step: "step", Ask: "ask", Close: "close"}
_TIMED = (Reset, Step, Ask)
_BOUNDS = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Tally:
    """What one session counts. Only who has the lock of the session writes here, so this needs none."""

    def __init__(self) -> None:
        self.times: dict[type[Any], list[float]] = {kind: [0] * (len(_BOUNDS) + 2) for kind in _TIMED}
        """For each kind of call how many took how long, and last the seconds of all of them."""
        self.calls: Counter[tuple[type[Any], str]] = Counter()

    def took(self, kind: type[Any], seconds: float) -> None:
        """Count a call that an environment did."""
        times = self.times[kind]
        times[bisect_left(_BOUNDS, seconds)] += 1
        times[-1] += seconds

    def add(self, other: Tally) -> None:
        """Count what another has counted, and may be counting on meanwhile: its copy is made in one go."""
        self.calls.update(dict(other.calls))
        for kind, times in other.times.items():
            self.times[kind] = [sum(pair) for pair in zip(self.times[kind], times, strict=True)]


class Metrics:
    """What all sessions of one server have counted, summed up when somebody asks."""

    def __init__(self) -> None:
        self._tallies: set[Tally] = set()
        self._ended, self._reasons, self._errors = Tally(), Counter[str](), Counter[str]()
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self._lock = threading.Lock()

    def begin(self) -> Tally:
        """The tally of a new session."""
        tally = Tally()
        with self._lock:
            self._tallies.add(tally)
            self._ended.calls[Create, "done"] += 1
        return tally

    def end(self, tally: Tally, why: str) -> None:
        """Keep what a session has counted that ended: ``closed``, ``idle`` or ``stopped``."""
        with self._lock:
            self._tallies.discard(tally)
            self._ended.add(tally)
            self._reasons[why] += 1

    def refused(self, kind: type[Any]) -> None:
        """Count a call that has no session."""
        with self._lock:
            self._ended.calls[kind, "refused"] += 1

    def answered(self, status: int) -> None:
        """Count a response that tells of an error."""
        with self._lock:
            self._errors[str(status)] += 1

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Tell ``value()`` whenever somebody asks."""
        self._gauges[name] = text, value

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Everything, as ``prometheus_client`` wants it."""
        with self._lock:
            total = Tally()
            for tally in (self._ended, *self._tallies):
                total.add(tally)
            reasons, errors = dict(self._reasons), dict(self._errors)
        yield from _calls(total)
        yield _counts("envweave_sessions_ended", "Sessions that ended, by why.", "why", reasons)
        yield _counts("envweave_http_errors", "Responses that told of an error.", "status", errors)
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value())


def _calls(total: Tally) -> Iterator[Metric]:
    calls = CounterMetricFamily(
        "envweave_calls", "Calls of sessions, by what came of them.", labels=["kind", "status"]
    )
    seconds = HistogramMetricFamily(
        "envweave_call_seconds", "Seconds that environments took.", labels=["kind"]
    )
    bounds = [*map(str, _BOUNDS), "+Inf"]
    for kind, times in total.times.items():
        counted = [sum(times[: end + 1]) for end in range(len(bounds))]
        total.calls[kind, "done"] = int(counted[-1]) - total.calls[kind, "crashed"]
        buckets = list(zip(bounds, counted, strict=True))
        seconds.add_metric([_KINDS[kind]], buckets=buckets, sum_value=times[-1])
    for (kind, status), count in total.calls.items():
        calls.add_metric([_KINDS[kind], status], count)
    yield calls
    yield seconds


def _counts(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
