"""A server of OpenEnv on the standard library alone, for images: it counts steps, and ends when ``crash`` is sent.

``python openenv_in_image.py [FD]`` listens on port 8000 of all addresses, or on the socket that it inherits.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import socketserver
import sys
from typing import Any

TEXT, CLOSE = 0x1, 0x8
SCHEMA = {
    "action": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
    "observation": {
        "type": "object",
        "properties": {"steps": {"type": "integer"}, "size": {"type": "string"}},
        "required": ["steps", "size"],
        "additionalProperties": False,
    },
    "state": {},
}


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        path = self.rfile.readline().split()[1].decode()
        headers: dict[str, str] = {}
        while line := self.rfile.readline().strip().decode():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if path == "/ws":
            self.play(headers["sec-websocket-key"])
            return
        known = {"/schema": SCHEMA, "/health": {"status": "healthy"}}
        body = json.dumps(known.get(path, {})).encode()
        status = 200 if path in known else 404
        self.wfile.write(f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    def play(self, key: str) -> None:
        digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        accept = base64.b64encode(digest).decode()
        self.wfile.write(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        steps = 0
        while (message := self.message()) is not None and message["type"] != "close":
            if message["type"] == "step" and message["data"]["message"] == "crash":
                os._exit(3)
            steps = 0 if message["type"] == "reset" else steps + 1
            seen = {"steps": steps, "size": os.environ.get("SIZE", "")}
            data = {"observation": seen, "reward": 1.0, "done": False}
            self.frame(TEXT, json.dumps({"type": "observation", "data": data}).encode())
        self.frame(CLOSE, b"")

    def message(self) -> Any:
        """The next message; ``None`` at the end of the connection."""
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0xF == CLOSE:
            return None
        size = head[1] & 0x7F
        if size == 126:
            size = int.from_bytes(self.rfile.read(2), "big")
        mask = self.rfile.read(4)
        return json.loads(bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(size))))

    def frame(self, kind: int, payload: bytes) -> None:
        """Send a frame of up to 125 bytes, or of up to 64 kB."""
        size = bytes([len(payload)]) if len(payload) < 126 else b"\x7e" + len(payload).to_bytes(2, "big")
        self.wfile.write(bytes([0x80 | kind]) + size + payload)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True


def main() -> None:
    inherited = len(sys.argv) > 1
    server = Server(("0.0.0.0", 8000), Handler, bind_and_activate=not inherited)
    if inherited:
        server.socket.close()
        server.socket = socket.socket(fileno=int(sys.argv[1]))
    server.serve_forever()


if __name__ == "__main__":
    main()
