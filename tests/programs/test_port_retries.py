"""Retries are answered once, equal calls at the same time are two, and slow answers keep their connections."""

from __future__ import annotations

import http.client
import json
import math
import queue
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from envweave_gym.hubs.prime.hub_session import _Program
from envweave_gym.programs.dialects.routes import DIALECTS
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.port import call as port_call
from envweave_gym.programs.port import remembered_chats, retries
from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.connection import Connection
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.port.remembered_chats import RememberedChats
from envweave_gym.programs.reply import Reply

CHAT = {"model": "agent", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def slow(calls: queue.SimpleQueue[Call]) -> Iterator[ModelPort]:
    """A port that takes every answer for a slow one."""
    opened = ModelPort(calls.put, head_delay_s=0.05, keep_alive_s=0.05)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _close_attempts() -> Iterator[None]:
    yield
    while attempts_made:
        attempts_made.pop().connection.close()


attempts_made: list[Attempt] = []


class Attempt:
    """One connection with a request under way."""

    def __init__(
        self,
        port: ModelPort,
        fields: dict[str, Any] = CHAT,
        path: str = "/v1/chat/completions",
        **head: str,
    ) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
        attempts_made.append(self)
        named = {key.replace("_", "-"): value for key, value in head.items()}
        headers = {"Authorization": f"Bearer {port.token}", **named}
        self.connection.request("POST", path, json.dumps(fields), headers)

    def text(self) -> str:
        response = self.connection.getresponse()
        assert response.status == 200
        text = response.read().decode()
        self.connection.close()
        return text

    def content(self) -> str:
        return json.loads(self.text())["choices"][0]["message"]["content"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def nothing_in(calls: queue.SimpleQueue[Call], port: ModelPort) -> bool:
    """Whether no call has come, after the port has handled a later request."""
    Attempt(port, {**CHAT, "model": "later"})
    later = calls.get(timeout=20)
    later.refuse("not wanted")
    return later.request.model == "later"


def test_a_request_that_comes_again_joins_the_open_call(port: ModelPort, calls: queue.SimpleQueue[Call]):
    first = Attempt(port)
    call = calls.get(timeout=20)
    first.connection.close()
    second = Attempt(port)
    until(lambda: call.attempts == 2)
    assert call.answer(Reply("once"))
    assert second.content() == "once"
    assert nothing_in(calls, port)


def test_an_answer_that_nobody_took_waits_for_the_next_attempt(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    first = Attempt(port)
    call = calls.get(timeout=20)
    first.connection.close()
    until(lambda: call.is_gone)
    assert not call.answer(Reply("stored"))
    assert Attempt(port).content() == "stored"
    assert nothing_in(calls, port)


def test_two_open_equal_requests_are_two_calls(port: ModelPort, calls: queue.SimpleQueue[Call]):
    attempts = [Attempt(port), Attempt(port)]
    pair = [calls.get(timeout=20) for _ in attempts]
    assert pair[0].request.digest == pair[1].request.digest
    for number, call in enumerate(pair):
        call.answer(Reply(str(number)))
    assert sorted(attempt.content() for attempt in attempts) == ["0", "1"]


def test_a_delivered_answer_is_sent_again_only_to_a_client_that_counts_its_retries(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    first = Attempt(port)
    calls.get(timeout=20).answer(Reply("one"))
    assert first.content() == "one"
    again = Attempt(port, x_stainless_retry_count="1")
    assert again.content() == "one"
    new = Attempt(port)
    calls.get(timeout=20).answer(Reply("two"))
    assert new.content() == "two"


def test_callers_of_other_sessions_and_paths_do_not_share_calls(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    first = Attempt(port, thread_id="a")
    call = calls.get(timeout=20)
    first.connection.close()
    until(lambda: call.is_gone)
    others = [Attempt(port, thread_id="b"), Attempt(port, CHAT, "/left/v1/chat/completions")]
    for _ in others:  # they come in any order
        calls.get(timeout=20).answer(Reply("other"))
    assert [one.content() for one in others] == ["other", "other"]
    again = Attempt(port, thread_id="a")
    call.answer(Reply("mine"))
    assert again.content() == "mine"


def test_a_refused_call_is_not_joined(port: ModelPort, calls: queue.SimpleQueue[Call]):
    first = Attempt(port)
    calls.get(timeout=20).refuse("no")
    assert first.connection.getresponse().status == 400
    second = Attempt(port)
    calls.get(timeout=20).answer(Reply("new"))
    assert second.content() == "new"


def test_a_slow_answer_that_crossed_with_a_timeout_is_sent_again(
    port: ModelPort, calls: queue.SimpleQueue[Call], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(port_call, "_SLOW_S", 0.0)
    first = Attempt(port)
    call = calls.get(timeout=20)
    call.answer(Reply("late"))
    until(lambda: bool(first.connection.sock.recv(1, socket.MSG_PEEK)))
    first.connection.close()  # with an answer in its buffer: the port gets a reset
    until(lambda: call.is_lost)
    assert Attempt(port).content() == "late"


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection whose requests nobody reads, and the client's end."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=20) as client,
    ):
        accepted, _ = listener.accept()
        with accepted:
            yield Connection(accepted, lambda _: None, lambda *_: None, lambda *_: b""), client


def call_of(connection: Connection) -> Call:
    request = ModelRequest("chat_completions", "m", (), [], {})
    return Call(request, 1, DIALECTS["chat_completions"], connection, lambda *_: None)


def test_an_answer_to_a_closed_connection_is_not_delivered(pair: tuple[Connection, socket.socket]):
    connection, client = pair
    call = call_of(connection)
    call._began -= 1.0
    client.close()
    until(connection.has_ended)
    assert not call.answer(Reply("stored"))
    assert (call.is_delivered, call.is_lost) == (False, True)


def test_a_reset_counts_for_slow_answers_on_the_same_connection(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(port_call, "_SLOW_S", 5.0)
    connection, client = pair
    call = call_of(connection)
    assert call.answer(Reply("fast"))
    call._began -= 10.0  # the reset comes long after the answer
    call.was_reset(connection)
    assert call.is_delivered
    call._latency_s = 10.0
    call.was_reset(Connection(client, lambda _: None, lambda *_: None, lambda *_: b""))
    assert call.is_delivered
    call.was_reset(connection)
    assert not call.is_delivered


def test_a_call_that_was_refused_takes_no_other_connection(pair: tuple[Connection, socket.socket]):
    connection, client = pair
    call = call_of(connection)
    call.refuse("no")
    client.close()
    assert not call.attach(connection)
    assert connection.call is None


def test_a_hub_ends_a_call_that_another_one_replaces(port: ModelPort, calls: queue.SimpleQueue[Call]):
    program = SimpleNamespace(
        _is_over=False, _episode=1, ready=SimpleNamespace(agents=["agent"]), _backlog=[], _counts={}
    )
    first, sorted_in = Attempt(port), {}
    replaced = calls.get(timeout=20)
    assert _Program._sort_in(program, replaced, sorted_in)  # pyright: ignore
    first.connection.close()
    until(lambda: replaced.is_gone)
    Attempt(port, {**CHAT, "temperature": 0})
    assert _Program._sort_in(program, calls.get(timeout=20), sorted_in)  # pyright: ignore
    assert (replaced.is_open, sorted_in["agent"] is replaced) == (False, False)
    again = Attempt(port)
    calls.get(timeout=20).answer(Reply("new"))
    assert again.content() == "new"


def test_of_calls_that_nobody_waits_for_the_answered_ones_are_forgotten_first(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
):
    connection, client = pair
    table = retries.Retries()

    def add(name: str, size: int, *, answered: bool) -> Call:
        request = ModelRequest("chat_completions", name, (), [], {}, body=b"x" * size, digest=name)
        call = Call(request, 1, DIALECTS["chat_completions"], connection, lambda *_: None)
        if answered:
            call.answer(Reply("ok"))
        else:
            call.disconnected(connection)
        table.add(call)
        return call

    monkeypatch.setattr(retries, "MAX_ENDED", 2)
    monkeypatch.setattr(retries, "MAX_LOST", 3)
    lost = [add(f"lost {number}", 1, answered=False) for number in range(3)]
    ended = [add(f"answered {number}", 1, answered=True) for number in range(6)]
    assert table.all() == [*lost, *ended[-2:]]
    lost += [add(f"more {number}", 1, answered=False) for number in range(3)]
    assert table.all() == [*ended[-2:], *lost[-3:]]
    monkeypatch.setattr(retries, "MAX_BYTES", 100)
    large = add("large", 99, answered=False)
    assert table.all() == [lost[-1], large]
    client.close()


def test_chats_after_responses_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remembered_chats, "MAX_RESPONSES", 3)
    monkeypatch.setattr(remembered_chats, "MAX_BYTES", 100)
    remembered = RememberedChats()
    for number in range(5):
        remembered.add(str(number), (), 1)
    assert [*remembered.chats] == ["2", "3", "4"]
    remembered.add("large", (), 99)
    assert [*remembered.chats] == ["4", "large"]
    remembered.add("too large", (), 500)
    assert [*remembered.chats] == ["too large"]
    remembered.clear()
    remembered.add("new", (), 1)
    assert [*remembered.chats] == ["new"]


def test_few_ended_calls_are_retained(
    port: ModelPort, calls: queue.SimpleQueue[Call], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retries, "MAX_ENDED", 4)
    waiting = Attempt(port, {**CHAT, "model": "waiting"})
    call = calls.get(timeout=20)
    for number in range(30):
        attempt = Attempt(port, {**CHAT, "model": str(number)})
        calls.get(timeout=20).answer(Reply("ok"))
        attempt.content()
    assert len(port._retries.all()) <= 10
    assert call in port._retries.all()
    call.answer(Reply("at last"))
    assert waiting.content() == "at last"


# Slow answers


def wait_for_keep_alives(call: Call, number: int) -> None:
    until(lambda: call._keep_alives >= number)


def test_a_slow_answer_in_json_comes_after_spaces(slow: ModelPort, calls: queue.SimpleQueue[Call]):
    attempt = Attempt(slow)
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 2)
    call.answer(Reply("slow"))
    text = attempt.text()
    assert text.startswith("  {")
    assert json.loads(text)["choices"][0]["message"]["content"] == "slow"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/messages", {**CHAT, "stream": True}),
        ("/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": []}),
    ],
)
def test_a_slow_stream_begins_with_blank_lines(
    slow: ModelPort, calls: queue.SimpleQueue[Call], path: str, fields: dict[str, Any]
):
    attempt = Attempt(slow, fields, path)
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 2)
    call.answer(Reply("slow"))
    text = attempt.text()
    assert text.startswith("\n\n")
    assert text.lstrip("\n").startswith(("data: ", "event: "))


def test_a_slow_response_begins_with_real_events(slow: ModelPort, calls: queue.SimpleQueue[Call]):
    attempt = Attempt(slow, {"model": "m", "input": "hi", "stream": True}, "/v1/responses")
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 3)
    call.answer(Reply("slow"))
    kinds = [line.split()[1] for line in attempt.text().splitlines() if line.startswith("event: ")]
    assert kinds[:4] == ["response.created", *["response.in_progress"] * 3]
    assert kinds.count("response.completed") == 1


def test_an_answer_that_has_begun_cannot_become_an_error(slow: ModelPort, calls: queue.SimpleQueue[Call]):
    attempt = Attempt(slow)
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 1)
    assert not call.refuse("too late")
    with pytest.raises((http.client.HTTPException, OSError)):
        attempt.text()


@pytest.mark.parametrize(
    "header",
    [{"x_stainless_read_timeout": "0.4"}, {"x_stainless_timeout": "1", "x_stainless_read_timeout": "no"}],
)
def test_an_announced_timeout_is_not_reached(
    port: ModelPort, calls: queue.SimpleQueue[Call], header: dict[str, str]
):
    attempt = Attempt(port, **header)
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 2)
    call.answer(Reply("slow"))
    assert attempt.content() == "slow"


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "0", "", "9e999", "soon"])
def test_a_timeout_that_is_none_is_ignored(given: str):
    assert port_call._patience_s({"x-stainless-timeout": given}) == math.inf


def test_a_retry_of_a_slow_call_waits_anew(slow: ModelPort, calls: queue.SimpleQueue[Call]):
    first = Attempt(slow)
    call = calls.get(timeout=20)
    wait_for_keep_alives(call, 2)
    first.connection.close()
    second = Attempt(slow)
    until(lambda: call.attempts == 2)
    wait_for_keep_alives(call, 1)
    call.answer(Reply("once"))
    assert second.content() == "once"
    assert nothing_in(calls, slow)
