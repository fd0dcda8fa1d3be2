"""The model port: requests of any client become calls, and replies go back; whatever else comes is refused."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envweave_gym.programs import model_port
from envweave_gym.programs.chat_completions import BadRequest, read_request
from envweave_gym.programs.http_requests import Refused, RequestReader
from envweave_gym.programs.model_port import Call, ModelPort
from envweave_gym.programs.reply import Reply, ToolCall

CHAT = {"model": "agent", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def calls() -> queue.SimpleQueue[Call]:
    return queue.SimpleQueue()


@pytest.fixture
def port(calls: queue.SimpleQueue[Call]) -> Iterator[ModelPort]:
    opened = ModelPort(calls.put)
    yield opened
    opened.close()


class Client:
    """A connection whose request is under way."""

    def __init__(
        self, port: ModelPort, body: Any, path: str = "/v1/chat/completions", token: str = ""
    ) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
        head = {"Authorization": f"Bearer {token or port.token}"}
        self.connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), head)

    def answer(self) -> tuple[int, Any]:
        response = self.connection.getresponse()
        data = response.read()
        self.connection.close()
        return response.status, json.loads(data) if response.status != 200 or data[:1] == b"{" else data


def test_a_call_gets_its_reply(port: ModelPort, calls: queue.SimpleQueue[Call]):
    client = Client(
        port, {**CHAT, "tools": [{"type": "function"}], "temperature": 0.5}, "/e3/v1/chat/completions"
    )
    call = calls.get(timeout=20)
    assert (call.request.messages, call.prefix) == (CHAT["messages"], "e3")
    assert (call.request.tools, call.request.sampling) == ([{"type": "function"}], {"temperature": 0.5})
    reply = Reply("hello", [ToolCall("add", {"a": 1})], usage={"prompt_tokens": 2, "completion_tokens": 3})
    assert call.answer(reply)
    status, body = client.answer()
    choice = body["choices"][0]
    assert (status, choice["finish_reason"], choice["message"]["content"]) == (200, "tool_calls", "hello")
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert body["usage"]["total_tokens"] == 5
    assert not call.answer(reply)


def test_streams_and_legacy_completions(port: ModelPort, calls: queue.SimpleQueue[Call]):
    client = Client(port, {**CHAT, "stream": True})
    calls.get(timeout=20).answer(Reply("héllo", [ToolCall("a"), ToolCall("b")]))
    events = client.answer()[1].decode().strip().split("\n\n")
    chunks = [json.loads(one.removeprefix("data: ")) for one in events[:-1]]
    assert events[-1] == "data: [DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "héllo"}
    assert [one["choices"][0]["delta"]["tool_calls"][0]["index"] for one in chunks[1:3]] == [0, 1]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    client = Client(port, {"model": "agent", "prompt": "Once"}, "/v1/completions")
    call = calls.get(timeout=20)
    assert call.request.messages == [{"role": "user", "content": "Once"}]
    call.answer(Reply("upon"))
    assert client.answer()[1]["choices"][0]["text"] == "upon"


@pytest.mark.parametrize(
    ("body", "path", "token", "status"),
    [
        (CHAT, "/v1/chat/completions", "wrong", 401),
        (CHAT, "/v1/elsewhere", "", 404),
        (b"{", "/v1/chat/completions", "", 400),
        (b"[" * 100_000, "/v1/chat/completions", "", 400),
        ([1], "/v1/chat/completions", "", 400),
        ({"model": "agent", "messages": "hi"}, "/v1/chat/completions", "", 400),
        ({"model": 3, "messages": []}, "/v1/chat/completions", "", 400),
        ({**CHAT, "n": 2}, "/v1/chat/completions", "", 400),
        ({**CHAT, "tools": "x"}, "/v1/chat/completions", "", 400),
        ({"model": "agent", "prompt": 3}, "/v1/completions", "", 400),
    ],
)
def test_wrong_requests_are_refused_and_reach_nobody(
    port: ModelPort, calls: queue.SimpleQueue[Call], body: Any, path: str, token: str, status: int
):
    answered, text = Client(port, body, path, token).answer()
    assert (answered, text["error"]["type"]) == (status, "invalid_request_error")
    assert calls.empty()


def test_a_body_without_the_token_is_not_received(port: ModelPort):
    with socket.create_connection(("127.0.0.1", port.number), timeout=20) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        assert raw.recv(64).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("begin", [b"", b"POST /v1/chat"], ids=["silent", "half a head"])
def test_a_connection_that_asks_nothing_is_closed_and_one_that_waits_is_not(
    port: ModelPort, calls: queue.SimpleQueue[Call], monkeypatch: pytest.MonkeyPatch, begin: bytes
):
    client = Client(port, CHAT)
    call = calls.get(timeout=20)
    monkeypatch.setattr(model_port, "_FIRST_HEAD_DEADLINE_S", 0.2)
    with socket.create_connection(("127.0.0.1", port.number), timeout=20) as raw:
        raw.sendall(begin)
        assert raw.recv(1) == b""
    call.answer(Reply("still there"))
    assert client.answer()[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nbroken\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"G" * 70_000, 431),
    ],
)
def test_what_is_not_http_is_refused(data: bytes, status: int):
    reader = RequestReader(lambda head: None)
    with pytest.raises(Refused) as caught:
        reader.feed(data)
    assert caught.value.status == status


def test_requests_are_parsed_in_pieces_of_any_size():
    data = b"POST /a?b=c HTTP/1.1\r\nContent-Length: 3\r\nX-Y: z\r\n\r\nabc"
    for size in (1, 2, 7, len(data)):
        reader = RequestReader(lambda head: None)
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        found = [request for piece in pieces if (request := reader.feed(piece)) is not None]
        assert [(one.path, one.headers["x-y"], one.body) for one in found] == [("/a", "z", b"abc")]
        assert reader.is_idle


def test_a_long_head_in_pieces_takes_linear_time():
    reader, begin = RequestReader(lambda head: None), time.process_time()
    for _ in range(60_000):
        reader.feed(b"x")
    assert time.process_time() - begin < 5.0


def test_a_program_that_hangs_up_is_gone_and_its_reply_goes_nowhere(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    client = Client(port, CHAT)
    call = calls.get(timeout=20)
    client.connection.close()
    deadline = time.monotonic() + 20
    while not call.is_gone and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not call.answer(Reply("too late"))


def test_a_refused_call_and_closing_free_the_program(port: ModelPort, calls: queue.SimpleQueue[Call]):
    clients = [Client(port, CHAT), Client(port, CHAT)]
    for _ in clients:
        calls.get(timeout=20)
    port.drop_calls("the episode is over")
    assert [client.answer()[0] for client in clients] == [400, 400]
    last = Client(port, CHAT)
    calls.get(timeout=20)
    threads = threading.active_count()
    port.close()
    with pytest.raises((http.client.HTTPException, OSError)):
        last.answer()
    assert threading.active_count() == threads - 1


def test_a_hundred_callers_at_once_are_all_answered(port: ModelPort, calls: queue.SimpleQueue[Call]):
    clients = [Client(port, {**CHAT, "model": str(n)}) for n in range(100)]
    waiting = [calls.get(timeout=20) for _ in clients]
    for call in waiting:
        call.answer(Reply(call.request.model))
    answers = [client.answer()[1]["choices"][0]["message"]["content"] for client in clients]
    assert answers == [str(n) for n in range(100)]


def test_models_and_probes(port: ModelPort):
    port.models = ("left", "right")
    connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
    connection.request("HEAD", "/")
    response = connection.getresponse()
    response.read()
    assert response.status == 200
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {port.token}"})
    rows = json.loads(connection.getresponse().read())["data"]
    connection.close()
    assert [row["id"] for row in rows] == ["left", "right"]


def test_lone_surrogates_of_a_program_do_not_break_observations():
    body = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "a\ud800b"}]}).encode()
    assert read_request("/chat/completions", body).messages[0]["content"] == "a?b"
    with pytest.raises(BadRequest):
        read_request("/chat/completions", b"\xff")
