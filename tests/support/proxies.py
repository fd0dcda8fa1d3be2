"""A TCP proxy that does to a connection what networks do: cut, delay, truncate and repeat."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from envweave_gym.remote.address import Address, remember_token

WAYS = ("pass", "cut", "truncate", "repeat", "delay")


class Proxy:
    """Stands before a server; each chunk that comes has one of :data:`WAYS` done to it, by these chances."""

    def __init__(self, url: str, seed: int, **chances: float) -> None:
        self._target = (urlsplit(url).hostname, urlsplit(url).port)
        self._rng, self._lock = random.Random(seed), threading.Lock()
        self.chances = chances
        self.done: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target, timeout=5)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                pair = (client, server)
                for one in pair:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += pair
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self._forward(data, sink):
                    break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _forward(self, data: bytes, sink: socket.socket) -> bool:
        way = self._way()
        if way == "cut":
            return False
        if way == "truncate":
            sink.sendall(data[: len(data) // 2])
            return False
        if way == "delay":
            time.sleep(0.02)
        sink.sendall(data * (2 if way == "repeat" else 1))
        return True

    def _way(self) -> str:
        with self._lock:
            draw = self._rng.random()
            way = "pass"
            for name, chance in self.chances.items():
                if draw < chance:
                    way = name
                    break
                draw -= chance
            self.done[way] += 1
        return way

    def cut(self) -> None:
        """End the connections there are."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def proxy(url: str, seed: int = 0, **chances: float) -> Iterator[Proxy]:
    """A proxy for a block, to which the token of the server behind it goes."""
    made = Proxy(url, seed, **chances)
    _, _, token = Address(url).headers().get("Authorization", "").partition(" ")
    remember_token(made.url, token)
    try:
        yield made
    finally:
        made.close()
