"""Requests that come drop by drop: they end in time, and keep nobody else waiting."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from servers import RunningServer, running_server

COUNTER, LIMIT = "envweave/Counter-v0", 1.5
DRIPPING = 200


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(COUNTER, client_timeout=LIMIT, max_sessions=4) as running:
        yield running


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def seconds_until_it_ends(client: socket.socket, drop: bytes) -> float:
    """How long a client may send drops, which come far more often than the limit is long."""
    began = time.monotonic()
    client.settimeout(0.1)
    while time.monotonic() - began < 10 * LIMIT:
        try:
            client.sendall(drop)
            if client.recv(1000) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


def test_a_head_that_comes_drop_by_drop_is_given_up_in_time(server: RunningServer):
    with closing(connect(server)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        assert LIMIT / 2 < seconds_until_it_ends(client, b"X: y\r\n") < 2.5 * LIMIT


def test_a_body_that_comes_drop_by_drop_is_given_up_in_time(server: RunningServer):
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    with closing(connect(server)) as client:
        client.sendall(f"{head}Content-Length: 100000\r\n\r\n".encode())
        assert LIMIT / 2 < seconds_until_it_ends(client, b" ") < 2.5 * LIMIT


def test_a_long_body_may_take_longer_as_long_as_it_comes(server: RunningServer):
    body = json.dumps({"id": COUNTER}).encode().ljust(5 * (80 << 10))
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    with closing(connect(server)) as client:
        client.sendall(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for start in range(0, len(body), 80 << 10):
            time.sleep(LIMIT / 2)
            client.sendall(body[start : start + (80 << 10)])
        assert client.recv(1000).startswith(b"HTTP/1.1 201 ")


def test_many_slow_senders_delay_no_others(server: RunningServer):
    over = threading.Event()

    def drip() -> None:
        while not over.is_set():
            with suppress(OSError), closing(connect(server)) as client:
                client.sendall(b"GET /health HTTP/1.1\r\n")
                while not over.wait(0.3):
                    client.sendall(b"X: y\r\n")

    threads = [threading.Thread(target=drip) for _ in range(DRIPPING)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(1)
        for _ in range(5):
            began = time.monotonic()
            assert server.ask("GET", "/health").status_code == 200
            assert time.monotonic() - began < 2
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_head_in_two_pieces_is_answered(server: RunningServer):
    with closing(connect(server)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        time.sleep(LIMIT / 2)
        client.sendall(b"Host: localhost\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_body_in_chunks_has_at_most_as_many_bytes_as_any_other():
    most = 64 << 10
    with running_server(COUNTER, largest_frame=most) as server:
        for size, status in ((most, 201), (most + 1, 413), (50 * most, 413)):
            body = json.dumps({"id": COUNTER}).encode().ljust(size)
            chunks = iter([body[:400], body[400:]])
            assert server.ask("POST", "/v1/sessions", data=chunks).status_code == status


def test_connections_that_ask_nothing_yet_keep_no_thread_and_do_not_delay_the_end():
    with running_server(COUNTER, max_sessions=1, drain=20) as server:
        silent = [connect(server) for _ in range(200)]
        time.sleep(2)
        began = time.monotonic()
        assert server.ask("GET", "/health").status_code == 200
        assert time.monotonic() - began < 1
        silent[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent[0].recv(1000).startswith(b"HTTP/1.1 200 ")
        server.process.terminate()
        assert server.process.wait(10) == 0
        for client in silent:
            client.close()
