"""Peers that answer as a test tells them to: servers in trouble, proxies before them, and slow ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from envweave_gym.net.websocket import FINAL, accept_token, apply_mask, frame_head, payload_span
from envweave_gym.remote.address import Address
from envweave_gym.remote.session import RemoteSession
from envweave_gym.wire.messages import CONTENT_TYPE, Began, Create, Created, encode, number_of, read_call

PACE = 0.05
"""So many seconds pass between two bytes of somebody slow."""
HTML = b"<html>the server behind me is not there</html>"


class Talk:
    """One connection to a peer."""

    def __init__(self, client: socket.socket, methods: list[str]) -> None:
        self._client, self._methods, self._ahead = client, methods, b""

    def request(self) -> tuple[dict[str, str], bytes]:
        """The headers and the body of the next request."""
        while b"\r\n\r\n" not in self._ahead:
            self._read()
        head, _, self._ahead = self._ahead.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self._methods.append(first.split()[0])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        while len(self._ahead) < size:
            self._read()
        body, self._ahead = self._ahead[:size], self._ahead[size:]
        return headers, body

    def respond(self, status: int, body: bytes = HTML, kind: str = "text/html") -> None:
        """Answer a request."""
        self._client.sendall(response(status, body, kind))

    def open_tunnel(self) -> None:
        """Answer a request for a tunnel."""
        self._client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")

    def begin_to_respond(self, status: int, body: bytes, kind: str) -> None:
        """Answer a request with all headers, but the body a byte at a time."""
        answer = response(status, body, kind)
        self._client.sendall(answer[: -len(body)])
        self.trickle(body)

    def shake_hands(self, *, slowly: bool = False) -> None:
        """Answer the handshake of a WebSocket."""
        answer = self.switching(self.request()[0])
        self.trickle(answer) if slowly else self._client.sendall(answer)

    def switching(self, headers: dict[str, str]) -> bytes:
        """The answer to the handshake with these headers."""
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        token = accept_token(headers["sec-websocket-key"])
        return f"{head}Sec-WebSocket-Accept: {token}\r\n\r\n".encode()

    def frame(self) -> bytes:
        """The payload of the next frame."""
        while (place := payload_span(self._ahead)) is None or place[1] > len(self._ahead):
            self._read()
        start, end = place
        payload = apply_mask(self._ahead[start - 4 : start], self._ahead[start:end])
        self._ahead = self._ahead[end:]
        return payload

    def say(self, payload: bytes, kind: int = 0x2) -> None:
        """Send a frame of this kind."""
        self.send(frame_head(len(payload), masked=False, first=FINAL | kind) + payload)

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self._client.sendall(data)

    def trickle(self, data: bytes) -> None:
        """Send a byte now and then."""
        for place in range(len(data)):
            time.sleep(PACE)
            self._client.sendall(data[place : place + 1])

    def _read(self) -> None:
        data = self._client.recv(1 << 16)
        if not data:
            raise ConnectionError
        self._ahead += data


Script = Callable[[Talk], Any]


class Peer:
    """Does with each connection what the next of its scripts says, and the last one with all others."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._scripts, self._tls = list(scripts), tls
        self.methods: list[str] = []
        """Those of the requests that came."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                threading.Thread(target=self._play, args=(client, script), daemon=True).start()

    def _play(self, client: socket.socket, script: Script) -> None:
        with client, contextlib.suppress(OSError):
            talked_to = self._tls.wrap_socket(client, server_side=True) if self._tls else client
            with talked_to:
                script(Talk(talked_to, self.methods))

    def session(self, deadline: float) -> RemoteSession:
        """A session there."""
        return RemoteSession(Address.of("x", self.url), Create("x"), deadline)

    def close(self) -> None:
        """Take no more connections, so that they are refused."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def peer(*scripts: Script, tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Peer]:
    """A peer for a block."""
    made = Peer(*scripts, tls=tls, port=port)
    try:
        yield made
    finally:
        made.close()


def response(status: int, body: bytes = HTML, kind: str = "text/html") -> bytes:
    """An answer of HTTP."""
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def reply_to(frame: bytes) -> bytes:
    """What a server replies whose environment observes 0."""
    message = read_call(frame)
    return encode(Created(0) if isinstance(message, Create) else Began(number_of(message), 0, {}))


def replies_slowly(talk: Talk) -> None:
    """Reply a byte at a time."""
    talk.shake_hands()
    talk.frame()
    talk.trickle(frame_head(1000, masked=False) + bytes(1000))


def lets_through(script: Script) -> Script:
    """A proxy that is asked for a tunnel, at whose other end a script plays."""

    def proxied(talk: Talk) -> None:
        talk.request()
        talk.open_tunnel()
        script(talk)

    return proxied


def plays(talk: Talk) -> None:
    """Play a session over a WebSocket."""
    talk.shake_hands()
    while True:
        talk.say(reply_to(talk.frame()))


def plays_over_http(talk: Talk) -> None:
    """Play a session over plain HTTP."""
    while True:
        talk.respond(200, reply_to(talk.request()[1]), CONTENT_TYPE)


def answers(status: int, body: bytes = HTML, kind: str = "text/html") -> Script:
    """Answers every request like this."""

    def script(talk: Talk) -> None:
        while True:
            talk.request()
            talk.respond(status, body, kind)

    return script


def ends(code: int, reason: str) -> Script:
    """Ends the WebSocket when the first frame comes."""

    def script(talk: Talk) -> None:
        talk.shake_hands()
        talk.frame()
        talk.say(code.to_bytes(2, "big") + reason.encode(), kind=0x8)
        talk.frame()  # until the client has left

    return script
