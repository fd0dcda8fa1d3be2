"""Clients that read no more, fall silent or do not leave: they keep no thread, and nobody else waiting."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import websocket
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import TConn
from json_clients import JsonClient, sentence
from servers import RunningServer, running_server, until

import envweave_gym.wire.packed_streams  # noqa: F401 - reads the streams of vectors
from envweave_gym.net.websocket import frame_head
from envweave_gym.wire.messages import Create, Reset, Step, Stepped, encode, read_reply
from envweave_gym.wire.values import pack
from envweave_gym_server.gunicorn.request_reader import RequestReader, SlowClients
from envweave_gym_server.gunicorn.worker import Worker
from envweave_gym_server.protocols.native import websocket as stream
from envweave_gym_server.protocols.native.websocket import Connection, WebSockets

WORLD, ROWS, STUCK = "envweave/LineWorld-v0", 20_000, 0.5
AGES = 20.0
HANDSHAKE = {"HTTP_SEC_WEBSOCKET_KEY": "x" * 24, "HTTP_SEC_WEBSOCKET_VERSION": "13"}
LITTLE = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
PING = b"\x89\x80\0\0\0\0"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(WORLD, client_timeout=STUCK) as running:
        yield running


def gauge(server: RunningServer, name: str) -> float:
    lines = server.ask("GET", "/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def play(server: RunningServer, **options: Any) -> websocket.WebSocket:
    url = server.url.replace("http", "ws") + "/v1/sessions/big/stream"
    headers = [f"{name}: {value}" for name, value in server.headers.items()]
    return websocket.create_connection(url, timeout=10, header=headers, suppress_origin=True, **options)


def test_a_player_who_reads_no_more_loses_the_connection_and_resumes_the_session(server: RunningServer):
    steps = [encode(Step(call, pack([0] * ROWS))) for call in range(2, 40)]
    with closing(play(server, sockopt=[LITTLE])) as deaf:
        for frame in (encode(Create(WORLD, "vector", {"num_envs": ROWS})), encode(Reset(1, 0))):
            deaf.send_binary(frame)
            deaf.recv()
        threading.Thread(target=send_all, args=(deaf, steps), daemon=True).start()
        until(lambda: gauge(server, "envweave_connections") == 0)
        until(lambda: server.get("/v1/sessions/big")["attached"] == 0)
        done = server.get("/v1/sessions/big")["call"]
        assert 2 <= done < 39
        with closing(play(server)) as again:
            for frame in steps[done - 2 : done]:
                again.send_binary(frame)
                reply = read_reply(again.recv())
                assert isinstance(reply, Stepped)
            assert reply.call == done + 1
    server.ask("DELETE", "/v1/sessions/big")


def send_all(connection: websocket.WebSocket, frames: list[bytes]) -> None:
    with suppress(OSError, websocket.WebSocketException):  # the server gives it up
        for frame in frames:
            connection.send_binary(frame)


def test_a_listener_who_reads_no_more_makes_room(server: RunningServer):
    opened = server.post("/v1/sessions", {"id": WORLD, "num_envs": 3000})["session"]
    path = f"/v1/sessions/{opened}"
    with socket.socket() as deaf:
        deaf.setsockopt(*LITTLE)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(request_of(server, f"{path}/events"))
        until(lambda: gauge(server, "envweave_listeners") == 1)
        server.post(f"{path}/reset", {"seed": 1})
        for _ in range(8):
            server.post(f"{path}/step", {"action": [0] * 3000})
        until(lambda: gauge(server, "envweave_listeners") == 0)
    server.ask("DELETE", path)


def request_of(server: RunningServer, path: str, *headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_request_that_does_not_come_to_its_end_is_given_up(server: RunningServer):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /health HT")
        began = time.monotonic()
        assert client.recv(1000) == b""
        assert time.monotonic() - began < 5
    body = json.dumps({"id": WORLD}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        head = request_of(server, "/v1/sessions", f"Content-Length: {len(body)}").replace(b"GET", b"POST")
        client.sendall(head + body[:-1])
        answer = client.recv(1000)
        while b"}" not in answer:
            answer += client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the body of the request has not come to its end" in answer
    events = [json.loads(line)["event"] for line in server.log().splitlines()]
    assert "connection lost" in events
    assert "Socket error processing request." not in events


def test_a_client_that_does_not_hang_up_delays_no_others(server: RunningServer):
    began = time.monotonic()
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(16)]
    for client in clients:
        client.sendall(request_of(server, "/health", "Connection: close"))
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.05)
    assert server.ask("GET", "/health").status_code == 200
    assert time.monotonic() - began < 15  # gunicorn would give each two seconds to hang up, one after another
    for client in clients:
        client.close()


def connected(family: int = socket.AF_UNIX, timeout: float = STUCK) -> tuple[Connection, socket.socket]:
    """The server's end of a WebSocket, and the socket of a client that has read the handshake."""
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
    connection = Connection({"werkzeug.socket": ours, **HANDSHAKE}, 1 << 20, timeout)
    connection.open()
    theirs.recv(1000)
    return connection, theirs


def fill(full: socket.socket) -> None:
    with suppress(BlockingIOError):
        while True:
            full.send(b"x" * 1000, socket.MSG_DONTWAIT)


def test_the_system_asks_whether_a_silent_client_is_there_still():
    connection, client = connected(socket.AF_INET)
    ours = connection.socket
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == STUCK * 1000
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert [ours.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [1, 1, 3]
    client.close()
    connection.hang_up()


def test_a_reply_that_is_not_taken_ends_the_connection_with_all_that_was_asked_meanwhile():
    connection, client = connected()
    client.sendall(frame_head(1, masked=True) + b"\0\0\0\0x")
    connection.answer_pings()
    assert list(connection._ready) == [b"x"]
    began = time.monotonic()
    connection.send(b"x" * (1 << 22))
    assert STUCK / 2 < time.monotonic() - began < 20 * STUCK
    assert connection.receive() is None
    client.close()
    connection.hang_up()


def test_pings_of_a_client_that_reads_nothing_do_not_keep_the_watch():
    connection, client = connected(timeout=AGES)
    fill(connection.socket)
    client.sendall(PING)
    began = time.monotonic()
    connection.answer_pings()
    assert time.monotonic() - began < AGES / 2
    assert connection.receive() is None
    client.close()
    connection.hang_up()


def test_pings_wait_for_a_reply_that_is_being_sent_and_do_not_keep_the_watch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "_LINGER_S", AGES)
    connection, client = connected(timeout=AGES)
    sending = threading.Thread(target=connection.send, args=(b"x" * (1 << 20),))
    sending.start()
    client.sendall(PING)
    until(lambda: not connection._sending.acquire(blocking=False) or connection._sending.release())
    began = time.monotonic()
    connection.answer_pings()
    assert time.monotonic() - began < AGES / 2
    left = (1 << 20) + len(frame_head(1 << 20, masked=False))
    while left:
        left -= len(client.recv(left))
    sending.join()
    connection.answer_pings()
    assert client.recv(100) == b"\x8a\x00"
    client.close()
    connection.hang_up()


def test_a_connection_that_cannot_be_watched_is_not_counted(monkeypatch: pytest.MonkeyPatch):
    def no_thread(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    watch = WebSockets()
    connection, client = connected()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            watch.add(connection)
    assert len(watch) == 0
    watch.add(connection)
    assert watch._thread is not None
    assert watch._thread.is_alive()
    watch.stop()
    client.close()
    connection.hang_up()


class HalfOpen:
    """A connection whose thread has not ended yet."""

    def __init__(self, *, left: bool) -> None:
        self._left = left

    def left(self) -> bool:
        return self._left


@pytest.mark.parametrize(
    ("gone", "there", "status"), [(0, 1, 400), (0, 2, 503), (2, 1, 400), (33, 0, 400), (34, 0, 503)]
)
def test_clients_that_have_left_only_hold_threads_of_the_server(gone: int, there: int, status: int):
    client = JsonClient("envweave/Counter-v0", max_sessions=1)
    for left in [True] * gone + [False] * there:
        client.app.extensions["envweave_websockets"]._connections.add(HalfOpen(left=left))
    reported = client.get("/v1/sessions/one/stream", status, headers={"Upgrade": "websocket"})
    assert sentence(reported).startswith(
        "2 of 2 connections are open" if status == 503 else "this address takes"
    )


def test_a_connection_that_ends_is_counted_once(monkeypatch: pytest.MonkeyPatch):
    worker = Worker.__new__(Worker)
    worker.nr_conns = 1
    worker.log, worker.method_queue = SimpleNamespace(debug=lambda *_: None), queue.Queue()
    ours, theirs = socket.socketpair()
    theirs.close()
    conn = TConn(Config(), ours, "", "")
    conn.data_ready = conn.initialized = True
    conn.parser = RequestParser(Config(), ours, "")
    conn.parser.unreader = RequestReader(ours, SlowClients(STUCK))
    done = SimpleNamespace(result=lambda: worker.handle(conn), cancelled=lambda: False)
    worker.finish_request(conn, done)
    assert (worker.nr_conns, ours.fileno()) == (0, -1)
