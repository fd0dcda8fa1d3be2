"""Metrics of a server in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from envweave_gym.wire.messages import Ask, Close, Create, Reset, Step
from envweave_gym_server.core.metrics import BOUNDS, Metrics, Tally

_KINDS: dict[type[Any], str] = {Create: "create", Reset: "reset", Step: "step", Ask: "ask", Close: "close"}


def exposition(metrics: Metrics) -> bytes:
    """Return all metrics as text."""
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    return generate_latest(registry)


class _Collector:
    """Converts counts to the families of ``prometheus_client``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        tally, ended, errors = self._metrics.totals()
        yield from _calls(tally)
        yield _counts("envweave_sessions_ended", "Sessions that ended, by why.", "why", ended)
        yield _counts("envweave_http_errors", "Responses that report an error.", "status", errors)
        for name, (text, value) in self._metrics.gauges.items():
            yield GaugeMetricFamily(name, text, value())


def _calls(total: Tally) -> Iterator[Metric]:
    calls = CounterMetricFamily(
        "envweave_calls", "Calls of sessions, by what came of them.", labels=["kind", "status"]
    )
    seconds = HistogramMetricFamily(
        "envweave_call_seconds", "Seconds that environments took.", labels=["kind"]
    )
    bounds = [*map(str, BOUNDS), "+Inf"]
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
