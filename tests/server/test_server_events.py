"""Looking on at a session: server-sent events that go on where they were cut off."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from json_clients import JsonClient, sentence
from servers import RunningServer, running_server

from envweave_gym_server.sessions.event_stream_log import EventStreamLog

COUNTER = "envweave/Counter-v0"


@pytest.fixture
def client() -> JsonClient:
    return JsonClient(COUNTER, "served_envs:served/Awkward-v0", log_size=8 * 4096, max_listeners=1)


def played(client: JsonClient, steps: int, **kwargs: Any) -> str:
    session = client.open(COUNTER, kwargs={"target": 1000, "max_steps": -1, **kwargs})
    client.post(f"{session}/reset", {"seed": 1})
    for _ in range(steps):
        client.post(f"{session}/step", {"action": {"delta": 1}})
    return session


def events_in(lines: Iterator[str] | str) -> Iterator[dict[str, Any]]:
    """The events of a stream: their fields, with the data read."""
    event: dict[str, Any] = {}
    for line in lines.splitlines() if isinstance(lines, str) else lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value
        elif event:
            yield event
            event = {}


def seen(client: JsonClient, session: str, query: str = "", **options: Any) -> list[dict[str, Any]]:
    response = client.ask("GET", f"{session}/events?follow=false{query}", **options)
    assert response.status_code == 200, response.text
    assert response.mimetype == "text/event-stream"
    return list(events_in(response.text))


def test_each_call_that_was_done_is_an_event(client: JsonClient):
    session = client.open(COUNTER)
    replies = [client.post(f"{session}/reset", {"seed": 1})]
    replies += [client.post(f"{session}/step", {"action": {"delta": 1}}) for _ in range(2)]
    client.post(f"{session}/step", {"action": {"delta": 99}}, 422)
    reported = seen(client, session)
    assert [event["id"] for event in reported] == ["1", "2", "3"]
    assert [event["event"] for event in reported] == ["reset", "step", "step"]
    assert [event["data"] for event in reported] == replies


@pytest.mark.parametrize("how", ["query", "header"])
def test_a_reconnected_client_gets_the_missed_events(client: JsonClient, how: str):
    session = played(client, 4)
    if how == "query":
        reported = seen(client, session, "&since=3")
    else:
        reported = seen(client, session, headers={"Last-Event-ID": "3"})
    assert [event["id"] for event in reported] == ["4", "5"]


def test_of_a_long_episode_the_oldest_calls_are_dropped_and_the_gap_is_reported(client: JsonClient):
    session = played(client, 60)
    gap, *rest = seen(client, session)
    missed = gap["data"]["missed"]
    assert (gap["event"], missed > 20) == ("gap", True)
    assert [int(event["id"]) for event in rest] == list(range(missed + 1, 62))
    assert "gap" not in [event["event"] for event in seen(client, session, f"&since={missed}")]


def test_an_event_stream_log_holds_no_more_than_it_may_but_always_the_last_reply():
    log = EventStreamLog(800)
    for number in range(1, 1000):
        log.add(number, b"x" * 30)
    assert [number for number, _ in log.since(0)] == [997, 998, 999]
    log.add(1000, b"x" * 5000)
    assert [number for number, _ in log.since(0)] == [1000]


def test_an_event_log_retains_more_with_a_listener():
    log = EventStreamLog(800)
    with log.listener():
        pass
    for number in range(1, 1000):
        log.add(number, b"x" * 30)
    assert len(log.since(0)) == 800 // 30


def test_a_crash_is_an_event_too(client: JsonClient):
    session = client.open("served/Awkward-v0", kwargs={"on_fault": "raise"})
    client.post(f"{session}/reset")
    client.post(f"{session}/step", {"action": 1})
    last = seen(client, session)[-1]
    assert (last["id"], last["event"], last["data"]["fault"]["kind"]) == ("2", "lost", "crash")


@pytest.mark.parametrize(
    "query", ["since=-1", "since=x", "since=1e3", f"since={10**20}", "follow=maybe", "arrays=x"]
)
def test_a_wrong_question_is_one_sentence(client: JsonClient, query: str):
    session = played(client, 0)
    sentence(client.get(f"{session}/events?{query}", 422))


def test_listeners_are_limited_and_make_room_when_they_leave(client: JsonClient):
    session = played(client, 1)
    first = client.ask("GET", f"{session}/events")
    refused = client.get(f"{session}/events", 503)
    assert "1 of 1 listeners" in sentence(refused)
    first.close()
    assert len(seen(client, session)) == 2


# Over a socket


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(COUNTER) as running:
        yield running


def listen(server: RunningServer, session: str, **options: Any) -> requests.Response:
    response = requests.get(
        f"{server.url}{session}/events", headers=server.headers, stream=True, timeout=10, **options
    )
    assert response.status_code == 200
    return response


def test_events_come_as_they_happen_and_end_with_the_session(server: RunningServer):
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": COUNTER})["session"]
    with listen(server, session) as response:
        reported = events_in(line.decode() for line in response.iter_lines(chunk_size=1))
        server.post(f"{session}/reset", {"seed": 1})
        assert next(reported)["event"] == "reset"
        sent = time.perf_counter()
        server.post(f"{session}/step", {"action": {"delta": 1}})
        assert next(reported)["id"] == "2"
        assert time.perf_counter() - sent < 1
        server.ask("DELETE", session)
        assert [event["event"] for event in reported] == ["closed"]


def test_a_listener_that_was_cut_off_misses_nothing_and_gets_nothing_twice(server: RunningServer):
    long = {"target": 1000, "max_steps": -1}
    session = "/v1/sessions/" + server.post("/v1/sessions", {"id": COUNTER, "kwargs": long})["session"]
    server.post(f"{session}/reset", {"seed": 1})

    def step() -> None:
        for _ in range(40):
            server.post(f"{session}/step", {"action": {"delta": 1}})

    player = threading.Thread(target=step)
    player.start()
    known = 0
    ids: list[int] = []
    while known < 41:
        with listen(server, session, params={"since": known}) as response:
            reported = events_in(line.decode() for line in response.iter_lines(chunk_size=1))
            for _, event in zip(range(7), reported, strict=False):
                known = int(event["id"])
                ids.append(known)
                if known == 41:
                    break
    player.join()
    assert ids == list(range(1, 42))
