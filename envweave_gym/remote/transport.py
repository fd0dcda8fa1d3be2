"""How frames get to a server and back: over a WebSocket, or over plain HTTP where those are blocked."""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import websocket

from envweave_gym.remote.address import FRAMES, Address
from envweave_gym.remote.errors import raise_refused
from envweave_gym.wire.framing import WHOLE_BINARY, head_of, masked, place_of
from envweave_gym.wire.messages import Refused

_OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
_CHUNK = 1 << 16
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SAYS_WHY = (401, 403, 404, 503)


class Transport(Protocol):
    """Sends one frame and receives its reply, each before a deadline; losses are ``ConnectionError``."""

    pipelines: bool
    """Whether a frame may be sent before the reply to the last one has come."""

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a frame."""
        ...

    def receive(self, deadline: float) -> bytes:
        """The next frame of the server."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class WebSocketBlocked(Exception):
    """Something between here and the server does not let WebSockets through."""


class BufferedSocket(socket.socket):
    """A socket that reads ahead: websocket-client asks for a byte at a time in the handshake."""

    _ahead, _next = b"", 0

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """At most ``bufsize`` bytes, from what was read before where there is some."""
        if self._next >= len(self._ahead):
            self._ahead, self._next = super().recv(max(bufsize, _CHUNK), flags), 0
        start, end = self._next, self._next + bufsize
        self._next = min(end, len(self._ahead))
        return self._ahead if start == 0 and end >= len(self._ahead) else self._ahead[start:end]

    def whole_binary(self) -> bytes | None:
        """The payload of the next frame, where that is a whole binary one; else nothing is read."""
        while (place := place_of(self._ahead, self._next)) is None:
            self._read_on(len(self._ahead) - self._next + 1)
        start, end = place
        if self._ahead[self._next] != WHOLE_BINARY or self._ahead[self._next + 1] & 0x80:
            return None
        if end > len(self._ahead):
            start, end = start - self._next, end - self._next
            self._read_on(end)
        self._next = end
        return self._ahead[start:end]

    def _read_on(self, size: int) -> None:
        """Read more behind what is there, until there are ``size`` bytes of it."""
        parts, have = [self._ahead[self._next :]], len(self._ahead) - self._next
        while have < size:
            data = super().recv(max(size - have, _CHUNK))
            if not data:
                raise ConnectionError("the server has hung up")
            parts.append(data)
            have += len(data)
        self._ahead, self._next = b"".join(parts), 0


def _connected(url: str, timeout: float) -> BufferedSocket | None:
    """A socket to ``url``; none where it takes TLS or a proxy, which websocket-client knows about."""
    parts = urlsplit(url)
    proxy = os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY")
    if parts.scheme != "ws" or (proxy and parts.hostname not in _LOOPBACK):
        return None
    plain = socket.create_connection((parts.hostname or "", parts.port or 80), timeout)
    buffered = BufferedSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
    for option in _OPTIONS:
        buffered.setsockopt(*option)
    buffered.settimeout(timeout)
    return buffered


class WebSocketTransport:
    """One WebSocket."""

    pipelines = True

    def __init__(self, address: Address, session_id: str, deadline: float) -> None:
        self._url = address.url
        self._socket = websocket.WebSocket(
            sockopt=list(_OPTIONS), enable_multithread=False, skip_utf8_validation=True
        )
        self._socket.settimeout(_left(deadline, self._url))
        headers = [f"{name}: {value}" for name, value in address.headers().items()]
        url = f"{address.websocket}/v1/sessions/{session_id}/stream"
        try:
            self._plain = _connected(url, _left(deadline, self._url))
            self._socket.connect(
                url,
                socket=self._plain,
                header=headers,
                suppress_origin=True,
                redirect_limit=0,
            )
        except websocket.WebSocketBadStatusException as error:
            self._turned_away(error)
        except (websocket.WebSocketException, OSError) as error:
            raise _lost(self._url, error) from None

    def _turned_away(self, error: Any) -> None:
        """Raise what the server says, where it is the server that says it."""
        if error.status_code in _SAYS_WHY:
            told = _told(error.resp_body)
            if told is not None:
                raise_refused(told, self._url)
        raise WebSocketBlocked from None

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a frame."""
        self._socket.settimeout(_left(deadline, self._url))
        try:
            if self._plain is None:
                self._socket.send_binary(frame)
            else:
                key = os.urandom(4)
                self._plain.sendall(head_of(len(frame), masked=True) + key + masked(key, frame))
        except (websocket.WebSocketException, OSError) as error:
            raise _lost(self._url, error) from None

    def receive(self, deadline: float) -> bytes:
        """The next frame of the server; pings are answered in between."""
        self._socket.settimeout(_left(deadline, self._url))
        try:
            frame = None if self._plain is None else self._plain.whole_binary()
            if frame is None:
                frame = self._socket.recv()
        except (websocket.WebSocketException, OSError) as error:
            raise _lost(self._url, error) from None
        if not isinstance(frame, bytes) or not frame:
            raise ConnectionError(f"{self._url} has hung up")
        return frame

    def close(self) -> None:
        """Hang up."""
        self._socket.shutdown()


class HttpTransport:
    """One request for each frame."""

    pipelines = False

    def __init__(self, address: Address, session_id: str) -> None:
        import requests

        self._address, self._requests, self._session = address, requests, requests.Session()
        self._url, self._post = address.url, f"{address.url}/v1/sessions/{session_id}/frames"
        self._headers = {**address.headers(), **FRAMES}
        self._reply = b""

    def send(self, frame: bytes, deadline: float) -> None:
        """Send a frame, and wait for its reply."""
        self._address.ensure()
        try:
            response = self._session.post(
                self._post, frame, headers=self._headers, timeout=_left(deadline, self._url)
            )
        except self._requests.Timeout:
            raise _too_late(self._url) from None
        except self._requests.RequestException as error:
            raise ConnectionError(f"{self._url}: {error}") from None
        self._reply = response.content

    def receive(self, deadline: float) -> bytes:
        """The reply."""
        reply, self._reply = self._reply, b""
        if not reply:
            raise ConnectionError(f"{self._url} gave no reply")
        return reply

    def close(self) -> None:
        """Hang up."""
        self._session.close()


def _left(deadline: float, url: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _too_late(url)
    return left


def _too_late(url: str) -> TimeoutError:
    return TimeoutError(f"{url} did not answer before the deadline")


def _lost(url: str, error: Exception) -> Exception:
    if isinstance(error, websocket.WebSocketTimeoutException | TimeoutError):
        return _too_late(url)
    return ConnectionError(f"{url}: {error or type(error).__name__}")


def _told(body: Any) -> Refused | None:
    """What the server says in the body of an error, where that is one of its own."""
    try:
        told = msgspec.json.decode(body, type=_Error)
    except (msgspec.MsgspecError, TypeError):
        return None
    return Refused(-1, told.error, told.message)


class _Error(msgspec.Struct):
    error: str
    message: str
