"""The model port: requests of any client become calls, and replies go back; whatever else comes is refused."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from envweave_gym.core.faults import InvalidAction
from envweave_gym.programs.port import http_requests, model_port
from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.http_requests import Refused, RequestReader
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.reply import Reply, ToolCall

CHAT = {"model": "agent", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while clients_made:
        clients_made.pop().connection.close()


clients_made: list[Client] = []


class Client:
    """A connection whose request is under way."""

    def __init__(
        self, port: ModelPort, body: Any, path: str = "/v1/chat/completions", token: str = ""
    ) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
        clients_made.append(self)
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
    assert (call.request.chat(), call.prefix) == (CHAT["messages"], "e3")
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
    assert chunks[1]["choices"][0]["delta"] == {"content": "héllo"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    client = Client(port, {"model": "agent", "prompt": "Once"}, "/v1/completions")
    call = calls.get(timeout=20)
    assert call.request.chat() == [{"role": "user", "content": "Once"}]
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
        (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n", 415),
        (b"POST / HTTP/1.0\r\n\r\n", 400),
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
        assert [(one.path, one.query, one.headers["x-y"], one.body) for one in found] == [
            ("/a", "b=c", "z", b"abc")
        ]
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
    # the thread that accepts, and that of the last connection; those of the others end by themselves
    assert threading.active_count() <= threads - 2


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


# Tokens, dialects, and bad input


def asked(port: ModelPort, method: str, path: str, body: Any = None, **head: str) -> tuple[int, Any]:
    """Status and body of an answer that the port gives itself; headers are spelled with underscores."""
    connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {key.replace("_", "-"): value for key, value in head.items()})
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if text else None


COUNT = "/v1beta/models/m:countTokens"


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key", "key"])
def test_the_token_comes_in_each_apis_way(port: ModelPort, header: str):
    token = f"Bearer {port.token}" if header == "Authorization" else port.token
    head = {} if header == "key" else {header: token}
    query = f"?alt=sse&key={port.token}" if header == "key" else ""
    assert asked(port, "POST", f"{COUNT}{query}", {"contents": []}, **head) == (200, {"totalTokens": 0})
    for wrong in (token[:-1], f"{token}x", f"{token[:-1]}é"):
        head = {} if header == "key" else {header: wrong}
        assert asked(port, "POST", COUNT, {"contents": []}, **head)[0] == 401


def test_each_api_gets_its_own_errors_counts_and_models(port: ModelPort):
    head = {"x_api_key": port.token, "anthropic_version": "2026-10-21"}
    body = {"model": "m", "messages": [{"role": "user", "content": "four"}]}
    assert asked(port, "POST", "/v1/messages/count_tokens", body, **head) == (200, {"input_tokens": 5})
    assert asked(port, "GET", "/v1/models", **head)[1]["data"][0]["display_name"] == "agent"
    assert asked(port, "POST", "/v1/messages", {"messages": 3}, **head)[1]["type"] == "error"
    status, error = asked(port, "POST", "/v1/messages/batches", {}, **head)
    assert (status, error["error"]["type"]) == (404, "not_found_error")
    head = {"x_goog_api_key": port.token}
    status, error = asked(port, "POST", "/v1beta/models/m:embedContent", {}, **head)
    assert (status, error["error"]["status"]) == (404, "NOT_FOUND")
    assert asked(port, "GET", "/v1beta/models", **head)[1]["models"][0]["name"] == "models/agent"
    head = {"Authorization": f"Bearer {port.token}"}
    assert asked(port, "GET", "/v1/models/agent", **head)[1]["id"] == "agent"
    status, error = asked(port, "GET", "/v1/models/other", **head)
    assert (status, error["error"]["type"]) == (404, "invalid_request_error")
    count = asked(port, "POST", "/v1/responses/input_tokens", {"model": "m", "input": "four"}, **head)[1]
    assert count == {"object": "response.input_tokens", "input_tokens": 5}


def test_websockets_are_refused_so_that_codex_falls_back_at_once(port: ModelPort):
    head = {"Authorization": f"Bearer {port.token}", "Connection": "Upgrade", "Upgrade": "websocket"}
    assert asked(port, "GET", "/v1/responses", **head)[0] == 426


def test_unknown_models_are_refused_where_the_owner_wants_it(calls: queue.SimpleQueue[Call]):
    port = ModelPort(calls.put, ("left", "right"), only_models=True)
    try:
        status, body = Client(port, CHAT).answer()
        assert (status, body["error"]["type"]) == (404, "invalid_request_error")
        assert "left, right" in body["error"]["message"]
        Client(port, {**CHAT, "model": "left"})
        assert calls.get(timeout=20).request.model == "left"
    finally:
        port.close()


def test_a_huge_body_is_one_clear_error_and_others_are_answered(
    port: ModelPort, calls: queue.SimpleQueue[Call], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_requests, "MAX_BODY_BYTES", 1 << 20)
    other = Client(port, CHAT)
    call = calls.get(timeout=20)
    # The client sends all of it before it looks for an answer.
    status, body = Client(port, b"x" * (20 << 20)).answer()
    assert (status, body["error"]["message"]) == (413, "the body has more than 1 MB")
    call.answer(Reply("still there"))
    assert other.answer()[0] == 200
    assert calls.empty()


def test_a_body_that_waits_for_leave_is_received(port: ModelPort, calls: queue.SimpleQueue[Call]):
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nx-api-key: {port.token}\r\nExpect: 100-continue\r\n"
    with socket.create_connection(("127.0.0.1", port.number), timeout=20) as raw:
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        assert raw.recv(64) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(body)
        calls.get(timeout=20).answer(Reply("ok"))
        assert raw.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


def test_one_connection_carries_calls_of_all_dialects_in_turn(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
    head = {"Authorization": f"Bearer {port.token}"}
    for path, fields, text in (
        ("/v1/chat/completions", CHAT, '"content": "ok"'),
        ("/v1/responses", {"model": "m", "input": "hi"}, '"output_text"'),
        ("/v1/messages", {"model": "m", "messages": []}, '"end_turn"'),
        ("/v1beta/models/m:generateContent", {"contents": []}, '"STOP"'),
        ("/v1/completions", {"model": "m", "prompt": "hi"}, '"text": "ok"'),
    ):
        connection.request("POST", path, json.dumps(fields), head)
        assert calls.get(timeout=20).answer(Reply("ok"))
        assert text in connection.getresponse().read().decode()
    connection.close()


def test_a_response_is_remembered_for_the_next_request(port: ModelPort, calls: queue.SimpleQueue[Call]):
    client = Client(port, {"model": "m", "input": "one", "instructions": "be brief"}, "/v1/responses")
    calls.get(timeout=20).answer(Reply("two"))
    previous = client.answer()[1]["id"]
    more = {"model": "m", "input": "three", "previous_response_id": previous}
    Client(port, more, "/v1/responses")
    chat = calls.get(timeout=20).request.chat()
    assert [(one["role"], one["content"]) for one in chat] == [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    port.drop_calls("another episode")
    assert Client(port, more, "/v1/responses").answer()[0] == 400


def test_responses_of_agents_whose_calls_have_equal_numbers_have_ids_of_their_own(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    names = []
    for agent in ("left", "right"):
        client = Client(port, {"model": agent, "input": "hi"}, "/v1/responses")
        call = calls.get(timeout=20)
        call.number = 1
        call.answer(Reply(agent))
        names.append(client.answer()[1]["id"])
    assert len({*names}) == 2
    Client(port, {"model": "left", "input": "on", "previous_response_id": names[0]}, "/v1/responses")
    assert [one["content"] for one in calls.get(timeout=20).request.chat()] == ["hi", "left", "on"]


def test_a_reply_that_the_dialect_cannot_carry_leaves_the_call_open(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    client = Client(port, {"model": "m", "prompt": "Once"}, "/v1/completions")
    call = calls.get(timeout=20)
    with pytest.raises(InvalidAction):
        call.answer(Reply(tool_calls=[ToolCall("f")]))
    assert call.answer(Reply("upon"))
    assert client.answer()[0] == 200


def test_a_second_request_before_the_answer_ends_the_connection_without_a_response(
    port: ModelPort, calls: queue.SimpleQueue[Call]
):
    body = json.dumps(CHAT).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nx-api-key: {port.token}\r\nContent-Length: {len(body)}\r\n\r\n"
    for second in (head.encode() + body, b"no HTTP\r\n\r\n", b"HEAD / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port.number), timeout=20) as raw:
            raw.sendall(head.encode() + body)
            call = calls.get(timeout=20)
            raw.sendall(second)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(4096) == b""
        assert not call.answer(Reply("too late"))
        call.drop()
    assert calls.empty()


def test_a_probe_without_the_token_has_no_body_and_holds_no_connection(port: ModelPort):
    for head, status in (("", b"200"), ("Content-Length: 0\r\n", b"200"), ("Content-Length: 9\r\n", b"401")):
        with socket.create_connection(("127.0.0.1", port.number), timeout=20) as raw:
            raw.sendall(f"HEAD / HTTP/1.1\r\n{head}\r\n".encode())
            data = raw.makefile("rb").read() if status == b"200" else raw.recv(64)
            assert data.split()[1] == status


def test_a_call_may_be_refused_with_any_status(port: ModelPort, calls: queue.SimpleQueue[Call]):
    for status in (400, 429, 500, 529):
        client = Client(port, CHAT)
        assert calls.get(timeout=20).refuse("not now", status)
        assert client.answer()[0] == status


def test_a_reply_that_raises_leaves_the_call_open(port: ModelPort, calls: queue.SimpleQueue[Call]):
    client = Client(port, CHAT)
    call = calls.get(timeout=20)
    with pytest.raises(TypeError):
        call.answer(Reply(tool_calls=[ToolCall("f", {"a": b"no JSON"})]))
    assert call.is_open
    assert call.answer(Reply("better"))
    assert client.answer()[0] == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"model": "m", "input": [{"type": []}]}),
        ("/v1/messages", {"model": "m", "messages": [], "tool_choice": {"type": []}}),
        ("/v1beta/models/m:generateContent", {"contents": [{"role": [], "parts": []}]}),
    ],
)
def test_fields_of_no_known_form_are_a_400(port: ModelPort, path: str, fields: dict[str, Any]):
    status, error = asked(port, "POST", path, fields, x_api_key=port.token)
    assert (status, "no form" in error["error"]["message"]) == (400, True)


def test_the_port_serves_a_socket_that_its_owner_has_made(calls: queue.SimpleQueue[Call]):
    listener = socket.create_server(("127.0.0.1", 0))
    port = ModelPort(calls.put, listener=listener)
    assert port.number == listener.getsockname()[1]
    client = Client(port, CHAT)
    calls.get(timeout=20).answer(Reply("ok"))
    assert client.answer()[0] == 200
    port.close()
    assert listener.fileno() == -1


def open_sockets() -> set[str]:
    """The sockets of this process, by inode."""
    found = set[str]()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {one for one in found if one.startswith("socket:")}


def test_a_closed_port_leaves_no_threads_and_no_descriptors(calls: queue.SimpleQueue[Call]):
    threads = {*threading.enumerate()}
    descriptors = open_sockets()
    port = ModelPort(calls.put)
    clients = [Client(port, {**CHAT, "model": str(n)}) for n in range(20)]
    for _ in clients:
        calls.get(timeout=20)
    port.close()
    port.close()
    assert {*threading.enumerate()} <= threads
    for client in clients:
        with pytest.raises((http.client.HTTPException, OSError)):
            client.answer()
        client.connection.close()
    assert open_sockets() <= descriptors
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=20)


def test_a_call_that_is_dropped_gets_no_answer(port: ModelPort, calls: queue.SimpleQueue[Call]):
    client = Client(port, CHAT)
    call = calls.get(timeout=20)
    call.drop()
    with pytest.raises((http.client.HTTPException, OSError)):
        client.answer()
    assert not call.answer(Reply("too late"))
