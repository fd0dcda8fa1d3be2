"""Times a call of the model through the model port, and through ``http.server`` and Flask in its place.

Each endpoint is a process of its own, whose requests another thread answers. The thin client is a bare socket with a
request that was built before; ``http.client`` is for comparison. Goals for the port: a median of 0.15 ms, and
5,000 calls/s. The CPU time of the endpoint's process says more than both while other programs run.
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

import psutil

from benchmarks.peers.model_endpoints import ENDPOINTS
from benchmarks.rounds import interleave, show

CALLS, ROUNDS, WARM_UP = 1000, 7, 100
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "agent", "messages": [{"role": "user", "content": "hi"}]}).encode()


class Thin:
    """A bare socket, which connects again where the endpoint closes it after each answer, as werkzeug does."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self.request = head.encode() + BODY
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self) -> None:
        self.socket.sendall(self.request)
        data = self.received()
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self.received()
        head = data[:end].lower() + b"\r"
        assert head.startswith(b"http/1.1 200")
        at = head.index(b"content-length:") + len("content-length:")
        missing = int(head[at : head.index(b"\r", at)]) - (len(data) - end - 4)
        while missing > 0:
            missing -= len(self.received())
        if b"connection: close" in head:
            self.socket.close()
            self.connect()

    def received(self) -> bytes:
        data = self.socket.recv(65536)
        assert data, "the endpoint has closed the connection"
        return data


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


class Measured:
    """Calls of one client to one endpoint; the total times of each round, and the endpoint's CPU time."""

    def __init__(self, client: Thin | Plain, process: psutil.Process) -> None:
        self._client, self._process = client, process
        self.totals: list[float] = []
        self.cpu: list[float] = []
        for _ in range(WARM_UP):
            client.call()

    def round(self) -> float:
        """The median time of a call, in milliseconds."""
        times, begin, before = [], time.perf_counter(), self._cpu()
        for _ in range(CALLS):
            start = time.perf_counter()
            self._client.call()
            times.append(time.perf_counter() - start)
        self.totals.append(time.perf_counter() - begin)
        self.cpu.append(self._cpu() - before)
        return 1e3 * statistics.median(times)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


def endpoint(name: str, stack: ExitStack) -> tuple[psutil.Process, int, str]:
    """Start an endpoint, which ends with the stack; its process, port and token."""
    command = [sys.executable, "-m", "benchmarks.peers.model_endpoints", name]
    process = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.stdin.close)
    number, _, token = process.stdout.readline().strip().partition(" ")
    return psutil.Process(process.pid), int(number), token


def main() -> None:
    measured = dict[tuple[str, str], Measured]()
    with ExitStack() as stack:
        for name in ENDPOINTS:
            process, number, token = endpoint(name, stack)
            for kind, connect in CLIENTS.items():
                measured[name, kind] = Measured(connect(number, token), process)
        medians = interleave({", ".join(pair): one.round for pair, one in measured.items()}, ROUNDS)
    rows = [
        {
            "endpoint": name,
            "client": kind,
            "median ms": medians[f"{name}, {kind}"],
            "calls/s, fastest round": CALLS / min(one.totals),
            "CPU ms of the endpoint": 1e3 * statistics.median(one.cpu) / CALLS,
        }
        for (name, kind), one in measured.items()
    ]
    show("Model calls: one caller, answered in another thread", rows)


if __name__ == "__main__":
    main()
