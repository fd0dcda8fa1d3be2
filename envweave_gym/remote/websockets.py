"""Frames over a WebSocket: websocket-client shakes hands, and everything after that is done here."""

from __future__ import annotations

import os
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, NoReturn

import websocket

from envweave_gym.net.deadlines import seconds_left
from envweave_gym.net.dial import GATEWAY_ERRORS, TunnelRefused, dial, proxy_for
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import hung_up, raise_refused, refusal_in, untrusted
from envweave_gym.remote.transport import lost
from envweave_gym.wire.framing import (
    CLOSE,
    FINAL,
    KIND,
    LARGEST_REPLY,
    MASKED,
    PING,
    PONG,
    RESERVED,
    WHOLE_BINARY,
    head_of,
    masked,
    place_of,
)

_CHUNK, _LARGEST_CHUNK = 1 << 16, 1 << 20
_SAYS_WHY = (401, 403, 404, 503)
_SWITCHED = 101
_LAST_WORDS = 0.2
"""So many seconds a server is listened to that has hung up while a frame was sent to it."""


class WebSocketBlocked(Exception):
    """Something between here and the server does not let WebSockets through."""


class BufferedSocket:
    """A socket that reads ahead, and whose calls all end when :attr:`deadline` is over.

    The timeout of a socket holds for each piece that arrives, and a peer may send many. websocket-client asks
    for a byte at a time in the handshake.
    """

    def __init__(self, plain: socket.socket, url: str, deadline: float) -> None:
        self._plain, self._url, self.deadline = plain, url, deadline
        self._ahead, self._next = b"", 0

    # What websocket-client calls

    def recv(self, bufsize: int) -> bytes:
        """At most ``bufsize`` bytes, from what was read before where there is some."""
        if self._next >= len(self._ahead):
            self._ahead, self._next = self._read(bufsize), 0
        start, end = self._next, self._next + bufsize
        self._next = min(end, len(self._ahead))
        return self._ahead[start:end]

    def send(self, data: bytes | memoryview) -> int:
        """Send some of the bytes; how many."""
        self._plain.settimeout(seconds_left(self.deadline, self._url))
        return self._plain.send(data)

    def gettimeout(self) -> float:
        """Not 0: it waits; how long, :meth:`recv` and :meth:`send` see to themselves."""
        return 1.0

    def fileno(self) -> int:
        """The file."""
        return self._plain.fileno()

    def close(self) -> None:
        """Hang up."""
        self._plain.close()

    # Frames

    def sendall(self, data: bytes) -> None:
        """Send the bytes."""
        sent = self.send(data)
        while sent < len(data):
            sent += self.send(memoryview(data)[sent:])

    def frame(self) -> tuple[int, bytes]:
        """The first byte of the next frame, which tells its kind, and its payload.

        A head that no server sends was mangled on its way: the frame is lost, and with it the connection.
        """
        while (place := place_of(self._ahead, self._next)) is None:
            self._read_on(len(self._ahead) - self._next + 1)
        start, end = place
        first, second = self._ahead[self._next], self._ahead[self._next + 1]
        if first & RESERVED or second & MASKED or end - start > LARGEST_REPLY:
            raise ConnectionError("what came is no frame of a server")
        if end > len(self._ahead):
            start, end = start - self._next, end - self._next
            self._read_on(end)
        self._next = end
        return first, self._ahead[start:end]

    def _read(self, size: int) -> bytes:
        self._plain.settimeout(seconds_left(self.deadline, self._url))
        return self._plain.recv(min(max(size, _CHUNK), _LARGEST_CHUNK))

    def _read_on(self, size: int) -> None:
        """Read more behind what is there, until there are ``size`` bytes of it."""
        parts, have = [self._ahead[self._next :]], len(self._ahead) - self._next
        while have < size:
            data = self._read(size - have)
            if not data:
                raise ConnectionError("the server has hung up")
            parts.append(data)
            have += len(data)
        self._ahead, self._next = b"".join(parts), 0


class WebSocketTransport:
    """One WebSocket."""

    def __init__(self, address: Address, session_id: str, deadline: float) -> None:
        self._url = address.url
        try:
            self._socket = _connected(address, f"/v1/sessions/{session_id}/stream", deadline)
        except websocket.WebSocketBadStatusException as error:
            _turned_away(error, self._url)
        except TunnelRefused:
            raise WebSocketBlocked from None
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self._url, error) from None
        except (websocket.WebSocketException, OSError) as error:
            raise _lost(self._url, error) from None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame; one that goes before it is sent in the same breath, which wakes the server once."""
        self._socket.deadline = deadline
        try:
            self._send(WHOLE_BINARY, frame, before)
        except TimeoutError:
            raise
        except OSError as error:
            self._hear_why()
            raise _lost(self._url, error) from None

    def _send(self, first: int, payload: bytes, before: bytes = b"") -> None:
        data = _packed(first, payload)
        self._socket.sendall(_packed(first, before) + data if before else data)

    def _hear_why(self) -> None:
        """Raise what a server has said that hung up, where another connection would end the same way."""
        self._socket.deadline = time.monotonic() + _LAST_WORDS
        with suppress(OSError):
            while True:
                self._next()

    def receive(self, deadline: float) -> bytes:
        """The next frame of the server; pings are answered in between."""
        self._socket.deadline = deadline
        try:
            return self._next()
        except OSError as error:
            raise _lost(self._url, error) from None

    def _next(self) -> bytes:
        first, payload = self._socket.frame()
        if first == WHOLE_BINARY:
            return payload
        parts: list[bytes] = []
        while True:
            kind = first & KIND
            if kind == CLOSE:
                raise hung_up(payload, self._url)
            if kind == PING:
                self._send(FINAL | PONG, payload)
            elif kind != PONG:
                parts.append(payload)
                if first & FINAL:
                    return b"".join(parts)
            first, payload = self._socket.frame()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _packed(first: int, payload: bytes) -> bytes:
    """A frame as it travels."""
    key = os.urandom(4)
    return head_of(len(payload), masked=True, first=first) + key + masked(key, payload)


def _connected(address: Address, path: str, deadline: float) -> BufferedSocket:
    """A WebSocket after the handshake."""
    headers = [f"{name}: {value}" for name, value in address.headers().items()]
    at = address.shortcut()
    opened = dial(address.url, deadline, at=at, proxy=proxy_for(address.url) if at is None else None)
    ours = BufferedSocket(opened, address.url, deadline)
    try:
        library: Any = websocket.WebSocket(enable_multithread=False)
        library.connect(
            address.websocket + path,
            socket=ours,
            timeout=seconds_left(deadline, address.url),
            header=headers,
            suppress_origin=True,
            redirect_limit=0,
        )
        if library.getstatus() != _SWITCHED:
            raise WebSocketBlocked
    except BaseException:
        ours.close()
        raise
    return ours


def _turned_away(error: Any, url: str) -> NoReturn:
    """Raise what the server says, where it is the server that says it."""
    told = refusal_in(error.resp_body) if error.status_code in _SAYS_WHY else None
    if told is not None:
        raise_refused(told, url)
    if error.status_code in GATEWAY_ERRORS:
        raise ConnectionError(f"{url} is not reached: HTTP {error.status_code}") from None
    raise WebSocketBlocked from None


def _lost(url: str, error: Exception) -> Exception:
    return lost(url, TimeoutError() if isinstance(error, websocket.WebSocketTimeoutException) else error)
