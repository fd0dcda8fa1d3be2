"""Two runs with the same seeds, one of them behind a faulty proxy: do they end with the same adapter, bit for bit?

The proxy drops requests before and after the server has done them, and sends them twice; the server is killed once
and started again. The adapters are compared by the SHA-256 of their last checkpoints, with the moments of Adam.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.rounds import show
from envweave_gym.training.tinker import TinkerOptions, train
from envweave_gym.training.tinker.local_server import LocalServer

FAULTS, KILL_AT, CHANCE = 200, 100, 0.25
KINDS = ("lost request", "lost reply", "repeated request")


class FaultyProxy(ThreadingHTTPServer):
    """Forwards requests to a server, until ``faults`` of them have gone wrong."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, server: LocalServer, faults: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.server, self.faults = server, faults
        self.done: Counter[str] = Counter()
        self._chance, self._lock = random.Random(0), threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self, path: str) -> str:
        """What to do with a request; kills the server in the middle."""
        with self._lock:
            count = self.done.total()
            if path.endswith("healthz") or count >= self.faults or self._chance.random() > CHANCE:
                return ""
            kind = "killed server" if count == KILL_AT else self._chance.choice(KINDS)
            self.done[kind] += 1
            return kind

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, bytes]:
        port = urlsplit(self.server.base_url).port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.getheader("Content-Type", ""), reply.read()
        finally:
            connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that has gone is what this proxy is for."""


class Handler(BaseHTTPRequestHandler):
    """One request of the SDK."""

    server: FaultyProxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        fault = self.server.next_fault(self.path)
        if fault == "killed server":
            self.server.server.kill()
            threading.Timer(1.0, self.server.server.restart).start()
        if fault in ("killed server", "lost request"):
            self._drop()
            return
        try:
            if fault == "repeated request":
                self.server.forward(self.command, self.path, headers, body)
            status, kind, reply = self.server.forward(self.command, self.path, headers, body)
        except OSError:
            self._drop()
            return
        if fault == "lost reply":
            self._drop()
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_DELETE = do_POST

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


def run(faults: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalServer("--deterministic", "--threads=1", folder=f"{folder}/checkpoints") as server,
    ):
        os.environ["TINKER_API_KEY"] = server.api_key
        proxy = FaultyProxy(server, faults)
        options = TinkerOptions(
            base_url=proxy.url, out=folder, run="run", groups=8, group=8, episodes=3200, max_tokens=4, rank=8,
            learning_rate=1e-3, eval_every=10, eval_episodes=32, save_every=5,
        )  # fmt: skip
        began = time.perf_counter()
        result = train("envweave/PickLetter-v0", options)
        proxy.shutdown()
        proxy.server_close()
        name = result["checkpoint"].rpartition("/")[2]
        (weights,) = Path(folder, "checkpoints").glob(f"*/weights/{name}.*.safetensors")
        return {
            "faults": proxy.done.total(),
            "kinds": ", ".join(f"{count} {kind}" for kind, count in sorted(proxy.done.items())) or "-",
            "updates": result["updates"],
            "seconds": time.perf_counter() - began,
            "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()[:16],
        }


def main() -> None:
    rows = [run(0), run(0), run(FAULTS)]
    show("Tinker faults: the same adapter", rows)
    assert len({row["sha256"] for row in rows}) == 1, "the adapters differ"


if __name__ == "__main__":
    main()
