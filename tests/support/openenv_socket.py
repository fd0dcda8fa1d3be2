"""A client of OpenEnv's WebSocket that sends exactly what a test says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import websocket
from servers import RunningServer

PATIENCE_S = 60.0


class OpenEnvSocket:
    """One connection, which is one session."""

    def __init__(self, connection: websocket.WebSocket) -> None:
        self._connection = connection

    def send(self, message: Any) -> None:
        self._connection.send(message if isinstance(message, str) else json.dumps(message))

    def receive(self) -> dict[str, Any]:
        """The next message; ``{}`` once the server has closed the connection."""
        text = self._connection.recv()
        return json.loads(text) if text else {}

    def ask(self, message: Any) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def reset(self, **data: Any) -> dict[str, Any]:
        """The data of the observation."""
        return self._data(self.ask({"type": "reset", "data": data}), "observation")

    def step(self, **data: Any) -> dict[str, Any]:
        """The data of the observation."""
        return self._data(self.ask({"type": "step", "data": data}), "observation")

    def state(self) -> dict[str, Any]:
        return self._data(self.ask({"type": "state"}), "state")

    def refused(self, message: Any) -> tuple[str, str]:
        """The code and the sentence of the error that a message gets."""
        data = self._data(self.ask(message), "error")
        assert "Traceback" not in data["message"]
        return data["code"], data["message"]

    @staticmethod
    def _data(message: dict[str, Any], kind: str) -> dict[str, Any]:
        assert message["type"] == kind, message
        return message["data"]


@contextmanager
def openenv_socket(server: RunningServer, path: str = "/ws", **options: Any) -> Iterator[OpenEnvSocket]:
    """A connection to a running server, closed with the block."""
    headers = [f"{name}: {value}" for name, value in server.headers.items()]
    options = {"header": headers, "suppress_origin": True, "timeout": PATIENCE_S, **options}
    connection = websocket.create_connection(server.url.replace("http", "ws", 1) + path, **options)
    try:
        yield OpenEnvSocket(connection)
    finally:
        connection.close()
        connection.shutdown()  # which close() leaves out if the server was faster
