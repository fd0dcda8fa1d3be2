"""A stand-in for servers of OpenEnv, in the dialects of 0.3 and 0.10, which misbehaves as a test says.

Its environment adds ``delta`` to a count until that is 3.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from envweave_gym.net.websocket import CLOSE, PING, PONG, TEXT, FrameReader, accept_token, frame_of

OLD, NEW = "0.3", "0.10"
ACTION: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "additionalProperties": True},
        "delta": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["delta"],
}
OBSERVATION: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "done": {"type": "boolean", "default": False},
        "reward": {"anyOf": [{"type": "boolean"}, {"type": "number"}, {"type": "null"}], "default": None},
        "metadata": {"type": "object", "additionalProperties": True},
        "count": {"type": "integer"},
        "text": {"type": "string"},
    },
    "required": ["count", "text"],
}
STATE: dict[str, Any] = {"type": "object", "properties": {"step_count": {"type": "integer"}}}
SCHEMA = {"action": ACTION, "observation": OBSERVATION, "state": STATE}

Fault = Callable[["Talk"], None]
"""What the server does with a message in place of an answer."""


class Adder:
    """The environment of one session."""

    def __init__(self, dialect: str, seeded: bool) -> None:
        self.dialect, self.seeded = dialect, seeded
        self.count = self.steps = 0
        self.given: dict[str, Any] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reply to a message."""
        kind, data = message["type"], message.get("data")
        if kind == "reset":
            self.steps = 0
            self.given = data or {}
            self.count = self.given.get("seed", 0) % 2 if self.seeded else 0
            return self._observed(0.0)
        if kind == "step":
            if not isinstance(data, dict) or type(data.get("delta")) is not int:
                errors = [{"type": "int_type", "loc": ["delta"], "msg": "Input should be an integer"}]
                return error("VALIDATION_ERROR", "Invalid message", errors=errors)
            self.count, self.steps = self.count + data["delta"], self.steps + 1
            return self._observed(float(data["delta"]))
        if kind == "state" and "data" not in message:
            return {
                "type": "state",
                "data": {"episode_id": "e", "step_count": self.steps, "given": self.given},
            }
        return error("UNKNOWN_TYPE", f"Unknown message type: {kind}")

    def _observed(self, reward: float) -> dict[str, Any]:
        metadata = {"steps": self.steps, "seed": self.given.get("seed")}
        observation: dict[str, Any] = {"count": self.count, "text": str(self.count)}
        data: dict[str, Any] = {"observation": observation, "reward": reward, "done": self.count >= 3}
        if self.dialect == NEW:
            observation["metadata"] = data["metadata"] = metadata
        return {"type": "observation", "data": data}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    """An error message."""
    return {"type": "error", "data": {"message": message, "code": code, **more}}


class Talk:
    """One connection to the server."""

    def __init__(self, server: OpenEnvServer, client: socket.socket) -> None:
        self.server, self.client = server, client
        self.pongs = threading.Event()

    def run(self) -> None:
        """Answer a request, or the messages of a session."""
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._received()
        lines = head.decode().split("\r\n")
        path = lines[0].split()[1]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        self.server.requests.append((path, headers))
        if path == "/ws":
            self._play(headers["sec-websocket-key"])
            return
        status, body = self.server.documents.get(path, (404, b'{"detail":"Not Found"}'))
        if callable(body):
            body(self)
            return
        kind = "application/json"
        self.client.sendall(
            f"HTTP/1.1 {status} OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def _play(self, key: str) -> None:
        lines = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade"
        self.client.sendall(f"{lines}\r\nSec-WebSocket-Accept: {accept_token(key)}\r\n\r\n".encode())
        with self.server.lock:
            is_full = self.server.open >= self.server.capacity
            self.server.open += not is_full
        if is_full:
            self.say(error("CAPACITY_REACHED", "Server at capacity", active_sessions=1, max_sessions=1))
            self.client.sendall(frame_of(b"\x03\xe8", masked=False, kind=CLOSE))
            return
        self.server.talks.append(self)
        self.server.opened.release()
        env, reader = (
            Adder(self.server.dialect, self.server.seeded),
            FrameReader(masked=True, largest=1 << 24),
        )
        try:
            while (message := self._message(reader)) is not None:
                self.server.messages.append(message)
                if message["type"] == "close":
                    self.server.answers_close.wait(30)
                    break
                fault = self.server.faults.pop(0) if self.server.faults else None
                if fault is None:
                    self.say(env.answer(message))
                else:
                    fault(self)
        finally:
            with self.server.lock:
                self.server.open -= 1
            self.server.closed.release()
        self.client.sendall(frame_of(b"\x03\xe8", masked=False, kind=CLOSE))

    def _message(self, reader: FrameReader) -> dict[str, Any] | None:
        while True:
            while (found := reader.next()) is None:
                reader.feed(self._received())
            if found.kind == TEXT:
                return json.loads(found.payload)
            if found.kind == PONG:
                self.pongs.set()
            if found.kind == CLOSE:
                return None
            assert found.kind in (TEXT, PONG), f"text frames alone, not {found.kind}"

    def say(self, message: Any) -> None:
        """Send a message."""
        self.say_raw(json.dumps(message).encode())

    def say_raw(self, text: bytes) -> None:
        """Send these bytes as a message."""
        self.client.sendall(frame_of(text, masked=False, kind=TEXT))

    def ping(self) -> None:
        """Send a ping."""
        self.client.sendall(frame_of(b"are you there", masked=False, kind=PING))

    def hang_up(self) -> None:
        """End the connection without a close frame."""
        self.client.shutdown(socket.SHUT_RDWR)

    def _received(self) -> bytes:
        data = self.client.recv(1 << 16)
        if not data:
            raise ConnectionError
        return data


class OpenEnvServer:
    """Serves the adder at a port of this machine; ``faults`` are what it does with the next messages."""

    def __init__(
        self,
        dialect: str = NEW,
        *,
        schema: Any = SCHEMA,
        capacity: int = 1000,
        port: int = 0,
        seeded: bool = False,
    ) -> None:
        self.dialect, self.capacity, self.open = dialect, capacity, 0
        self.seeded = seeded  # whether the count begins with the last bit of the seed
        self.documents: dict[str, tuple[int, Any]] = {
            "/schema": (200, schema if isinstance(schema, bytes) else json.dumps(schema).encode()),
            "/health": (200, b'{"status":"healthy"}'),
        }
        self.faults: list[Fault | None] = []
        self.talks: list[Talk] = []
        self.messages: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self.answers_close = threading.Event()  # while it is not set, nobody gets a close frame
        self.answers_close.set()
        self.opened, self.closed = threading.Semaphore(0), threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._clients: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.url, self.name = f"http://127.0.0.1:{self.port}", f"openenv://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            Talk(self, client).run()

    def kinds(self) -> list[str]:
        """The types of the messages that came."""
        return [message["type"] for message in self.messages]

    def die(self) -> None:
        """End with all connections."""
        for one in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextlib.contextmanager
def openenv_server(dialect: str = NEW, **how: Any) -> Iterator[OpenEnvServer]:
    """A server that is ended with the block."""
    server = OpenEnvServer(dialect, **how)
    try:
        yield server
    finally:
        server.die()


# Faults


def hang(talk: Talk) -> None:
    """Never answer."""


def drop(talk: Talk) -> None:
    """Lose the connection."""
    talk.hang_up()


def saying(message: Any) -> Fault:
    """Answer with this message, or with these bytes."""
    return lambda talk: talk.say_raw(message) if isinstance(message, bytes) else talk.say(message)


def observing(**members: Any) -> Fault:
    """Answer with an observation that differs in these members of its data."""
    data = {"observation": {"count": 1, "text": "1"}, "reward": 1.0, "done": False, **members}
    return saying({"type": "observation", "data": data})
