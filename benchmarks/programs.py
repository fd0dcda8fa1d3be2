"""Times a call of the model through the model port, and through ``http.server`` and Flask in its place.

Each endpoint is a process of its own, whose requests another thread answers. The thin client is a bare socket with a
request that was built before; ``http.client`` is for comparison. Goals for the port: a median of 0.15 ms, and
5,000 calls/s.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks.peers.model_endpoints import ENDPOINTS
from benchmarks.rounds import interleave, show

CALLS, ROUNDS, WARM_UP = 2000, 7, 200
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "hi"}]}).encode()


class Thin:
    """A bare socket."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self.request = head.encode() + BODY

    def call(self) -> None:
        self.socket.sendall(self.request)
        data = self.socket.recv(65536)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self.socket.recv(65536)
        assert data.startswith(b"HTTP/1.1 200")
        at = data.lower().index(b"content-length:") + len("content-length:")
        missing = int(data[at : data.index(b"\r", at)]) - (len(data) - end - 4)
        while missing > 0:
            missing -= len(self.socket.recv(65536))


class Plain:
    """``http.client``."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(self) -> None:
        self.connection.request("POST", PATH, BODY, self.head)
        response = self.connection.getresponse()
        response.read()
        assert response.status == 200


CLIENTS: dict[str, Callable[[int, str], Thin | Plain]] = {"bare socket": Thin, "http.client": Plain}


def median_ms(client: Thin | Plain, totals: list[float]) -> float:
    """The median time of a call, in milliseconds; the time of all of them is appended to ``totals``."""
    times, begin = [], time.perf_counter()
    for _ in range(CALLS):
        start = time.perf_counter()
        client.call()
        times.append(time.perf_counter() - start)
    totals.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def endpoint(name: str, stack: ExitStack) -> tuple[int, str]:
    """Start an endpoint, which ends with the stack; its port and token."""
    command = [sys.executable, "-m", "benchmarks.peers.model_endpoints", name]
    process = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    number, _, token = process.stdout.readline().strip().partition(" ")
    return int(number), token


def main() -> None:
    with ExitStack() as stack:
        contestants, totals = (
            dict[tuple[str, str], Callable[[], float]](),
            dict[tuple[str, str], list[float]](),
        )
        for name in ENDPOINTS:
            address = endpoint(name, stack)
            for kind, connect in CLIENTS.items():
                client, totals[name, kind] = connect(*address), []
                for _ in range(WARM_UP):
                    client.call()
                contestants[name, kind] = partial(median_ms, client, totals[name, kind])
        names = {f"{name}, {kind}": (name, kind) for name, kind in contestants}
        medians = interleave({key: contestants[pair] for key, pair in names.items()}, ROUNDS)
    rows = [
        {
            "endpoint": names[key][0],
            "client": names[key][1],
            "median ms": medians[key],
            "calls/s": CALLS / statistics.median(totals[names[key]]),
        }
        for key in medians
    ]
    show("Model calls: one caller, answered in another thread", rows)


if __name__ == "__main__":
    main()
