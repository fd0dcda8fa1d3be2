"""What a server counts and logs."""

from __future__ import annotations

import json
import logging
import math
import time
import timeit
from collections import Counter
from typing import Any

import pytest
from json_clients import JsonClient
from prometheus_client.parser import text_string_to_metric_families

from envweave_gym.wire.messages import Create, Step, encode
from envweave_gym_server.core.logs import JsonLines
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.protocols.rest.prometheus import exposition
from envweave_gym_server.sessions.session import Session

COUNTER = "envweave/Counter-v0"


def numbers(client: JsonClient) -> dict[tuple[str, ...], float]:
    """The samples of /metrics by name and labels."""
    response = client.ask("GET", "/metrics")
    assert response.mimetype == "text/plain"
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_calls_are_counted_by_what_came_of_them():
    client = JsonClient(COUNTER, "served_envs:served/Awkward-v0", max_sessions=2)
    session = client.open(COUNTER)
    client.post(f"{session}/reset", {"seed": 1, "call": 1})
    client.post(f"{session}/reset", {"seed": 1, "call": 1})
    client.post(f"{session}/step", {"action": {"delta": 1}})
    client.post(f"{session}/step", {"action": {"delta": 1}, "call": 9}, 409)
    awkward = client.open("served/Awkward-v0", kwargs={"on_fault": "raise"})
    client.post(f"{awkward}/reset")
    client.post(f"{awkward}/step", {"action": 1})
    client.post("/v1/sessions", {"id": COUNTER}, 503)
    reported = numbers(client)
    calls = {key[1:]: value for key, value in reported.items() if key[0] == "envweave_calls_total" and value}
    assert calls == {
        ("create", "done"): 2,
        ("reset", "done"): 2,
        ("reset", "repeated"): 1,
        ("step", "done"): 1,
        ("step", "refused"): 1,
        ("step", "crashed"): 1,
    }
    assert reported["envweave_sessions",] == reported["envweave_sessions_most",] == 2
    assert reported["envweave_http_errors_total", "503"] == reported["envweave_http_errors_total", "409"] == 1
    client.ask("DELETE", session)
    after = numbers(client)
    assert after["envweave_sessions",] == after["envweave_sessions_ended_total", "closed"] == 1
    assert after["envweave_calls_total", "step", "done"] == 1


def test_the_seconds_of_steps_are_a_histogram():
    client = JsonClient("served_envs:served/Nap-v0")
    session = client.open("served/Nap-v0")
    client.post(f"{session}/reset")
    for seconds in (0, 0, 0.03):
        client.post(f"{session}/step", {"action": seconds})
    reported = numbers(client)
    buckets = {
        float(key[2]): value
        for key, value in reported.items()
        if key[0] == "envweave_call_seconds_bucket" and key[1] == "step"
    }
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets[0.025], buckets[0.05], buckets[math.inf]) == (2, 3, 3)
    assert reported["envweave_call_seconds_count", "step"] == 3
    assert 0.03 <= reported["envweave_call_seconds_sum", "step"] < 0.2


def test_two_servers_in_a_process_count_apart():
    first, second = JsonClient(COUNTER), JsonClient(COUNTER)
    first.open(COUNTER)
    assert numbers(first)["envweave_sessions",] == 1
    assert numbers(second)["envweave_sessions",] == 0


class CountedOn(Counter[Any]):
    """Counts on for as long as somebody goes through it, as a session does in its own thread."""

    def items(self) -> Any:
        for pair in super().items():
            self[Step, str(len(self))] += 1
            yield pair


def test_calls_are_summed_up_while_sessions_count_on():
    metrics = Metrics()
    metrics.begin().calls = CountedOn({(Step, "refused"): 2})
    assert b'envweave_calls_total{kind="step",status="refused"} 2.0' in exposition(metrics)


def test_counting_and_logging_of_events_cost_little_and_keep_little():
    class Host:
        def do(self, message: Step, frame: bytes) -> tuple[bytes, bool]:
            return reply, True

        def answer(self, message: object, frame: bytes) -> bytes:
            return reply

        def close(self) -> None:
            pass

    reply = b"\x97" + b"x" * 300
    session = Session("s", Create(COUNTER), b"", Host(), Metrics(), log_size=16 << 10)
    message, frame = Step(0, {"delta": 1}), encode(Step(0, {"delta": 1}))

    def step() -> None:
        message.call += 1
        session.call(message, frame)

    best = min(timeit.repeat(step, number=2000, repeat=5, timer=time.thread_time)) / 2000
    assert best < 20e-6  # some 0.8 us where no lines are counted
    assert sum(len(kept) for _, kept in session.replies.since(0)) <= 16 << 10


def test_a_log_line_is_json_with_the_fields_that_were_given():
    record = logging.makeLogRecord(
        {"msg": "session %s", "args": ("ended",), "levelname": "INFO", "session": "s"}
    )
    line = json.loads(JsonLines().format(record))
    assert (line["event"], line["level"], line["session"]) == ("session ended", "info", "s")
    assert line["time"].endswith("+00:00")


def test_a_failure_is_logged_with_where_it_came_from_but_not_with_what_it_said():
    try:
        raise KeyError("a secret in an exception")
    except KeyError:
        record = logging.LogRecord(
            "x", logging.ERROR, __file__, 1, "call failed", None, __import__("sys").exc_info()
        )
    line = JsonLines().format(record)
    assert json.loads(line)["error"] == "KeyError"
    assert "test_server_metrics.py" in line
    assert "secret" not in line


def test_sessions_that_come_and_go_are_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "envweave_gym_server")
    client = JsonClient(COUNTER, idle_timeout=0.05)
    session = client.open(COUNTER)
    deadline = time.monotonic() + 10
    while "session ended" not in caplog.text and time.monotonic() < deadline:
        client.ask("GET", session)  # who only looks on does not keep it
    events = [(record.message, getattr(record, "why", None)) for record in caplog.records]
    assert events[0] == ("session created", None)
    assert ("session ended", "idle") in events
