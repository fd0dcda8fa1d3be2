"""WebSockets (RFC 6455): a frame codec for client and server, and the client's end of a connection.

A protocol library spends more time on a frame than a small environment on a step. This codec knows frames,
fragments and masks, but no extensions, and does no I/O.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import xor
from typing import NamedTuple

import numpy as np

from envweave_gym.net.deadlines import TimedSocket
from envweave_gym.net.http import HttpConnection

FINAL, RESERVED, KIND = 0x80, 0x70, 0x0F
"""Bit fields in the first byte of a frame: last frame of a message, must be 0, and the kind."""
MASKED = 0x80
"""Bit in the second byte of a frame that says whether the payload is masked, as clients must do."""
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
"""Kinds of frames; from ``CLOSE`` on they control the connection and are not parts of messages."""
NORMAL, GOING_AWAY, PROTOCOL_ERROR, INVALID_DATA, TOO_BIG = 1000, 1001, 1002, 1007, 1009
"""Status codes in close frames."""

_LONGEST_CONTROL_BYTES = 125
_NUMPY_FROM = 1024
"""Size in bytes from which NumPy masks faster than Python's integers: 28 times at 64 kB (measured)."""
_CHUNK_BYTES, _LARGEST_CHUNK_BYTES = 1 << 16, 1 << 20
_SWITCHING_PROTOCOLS = 101
_LARGEST_REFUSAL_BYTES = 1 << 20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class ProtocolError(ConnectionError):
    """Error if the peer has sent an invalid frame, or a frame out of order; ``code`` is for our close frame."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


class MessageTooLarge(ProtocolError):
    """Error if the peer sends a message larger than the limit."""


class ConnectionClosed(ConnectionError):
    """Error if the peer has sent a close frame, with its code (0 if the frame has none) and reason."""

    def __init__(self, payload: bytes) -> None:
        self.code = int.from_bytes(payload[:2], "big")
        reason = payload[2:].decode(errors="replace")  # in which a terminal must obey nothing
        self.reason = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in reason)
        super().__init__(f"closed: {self.reason or 'without a reason'} ({self.code or 'no code'})")


class HandshakeRefused(Exception):
    """Error if the server answered the handshake with a status other than 101."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.body = status, body


# Frames


def frame_of(payload: bytes, *, masked: bool, kind: int = BINARY) -> bytes:
    """Return a whole frame; ``masked`` for the frames of a client, not for those of a server."""
    return b"".join(frame_parts(payload, masked=masked, kind=kind))


def frame_parts(payload: bytes, *, masked: bool, kind: int = BINARY) -> Iterator[bytes]:
    """Yield a whole frame in parts; a long payload is masked in chunks, each when it is asked for."""
    head = frame_head(len(payload), masked=masked, first=FINAL | kind)
    if not masked:
        yield head
        yield payload
        return
    key = os.urandom(4)
    yield head + key
    view = memoryview(payload)
    for start in range(0, len(payload), _LARGEST_CHUNK_BYTES):  # which is a multiple of the key's length
        yield apply_mask(key, view[start : start + _LARGEST_CHUNK_BYTES])


def frame_head(size: int, *, masked: bool, first: int = FINAL | BINARY) -> bytes:
    """Return the head of a frame with a payload of ``size`` bytes, without the mask's key."""
    bit = MASKED if masked else 0
    if size < 126:
        return bytes((first, bit | size))
    if size < 1 << 16:
        return struct.pack("!BBH", first, bit | 126, size)
    return struct.pack("!BBQ", first, bit | 127, size)


def payload_span(data: bytes | bytearray) -> tuple[int, int] | None:
    """Return the offsets at which the first frame's payload begins and ends; ``None`` while its head is incomplete.

    If the frame is masked, the key is the four bytes before the payload.
    """
    have = len(data)
    if have < 2:
        return None
    size, start = data[1] & 0x7F, 2
    if size >= 126:
        start = 4 if size == 126 else 10
        size = int.from_bytes(data[2:start], "big")
    if data[1] & MASKED:
        start += 4
    return None if have < start else (start, start + size)


def apply_mask(key: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    """Return the payload XORed with the four-byte mask key, which masks or unmasks it."""
    size = len(payload)
    if size >= _NUMPY_FROM:
        whole = size & ~3
        words = np.frombuffer(payload, np.uint32, whole // 4) ^ np.frombuffer(key, np.uint32)
        return words.tobytes() + bytes(map(xor, payload[whole:], key))
    mask = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")


class Message(NamedTuple):
    """A whole message, or a control frame."""

    kind: int
    payload: bytes


class FrameReader:
    """Parser that cuts the bytes from a peer into messages and control frames, without I/O."""

    def __init__(self, *, masked: bool, largest: int) -> None:
        """``masked`` says that the peer is a client; ``largest`` limits the bytes of a message."""
        self._mask_bit, self._largest = MASKED if masked else 0, largest
        self._received: list[bytes] = []
        self._have, self._need = 0, 2
        self._fragments: list[bytes] = []
        self._kind, self._size = CONTINUATION, 0

    @property
    def missing(self) -> int:
        """Least number of bytes that must still arrive before the next message is complete."""
        return self._need - self._have

    @property
    def has_bytes(self) -> bool:
        """Whether there are bytes that no message has been cut from yet."""
        return self._have > 0

    def feed(self, data: bytes) -> None:
        """Append bytes that have arrived."""
        self._received.append(data)
        self._have += len(data)

    def next(self) -> Message | None:
        """Return the next message or control frame; ``None`` while it is incomplete."""
        while (frame := self._frame()) is not None:
            first, payload = frame
            if first == FINAL | BINARY or first & KIND >= CLOSE:
                return Message(first & KIND, payload)
            if (message := self._joined(first, payload)) is not None:
                return message
        return None

    def _frame(self) -> tuple[int, bytes] | None:
        """Remove the first frame from the received bytes; return its first byte and its payload."""
        if self._have < self._need:
            return None
        data = self._received[0] if len(self._received) == 1 else b"".join(self._received)
        self._received = [data]
        if data[0] != FINAL | BINARY or data[1] & MASKED != self._mask_bit or self._kind:
            self._check(data[0], data[1])
        span = payload_span(data)
        if span is None:
            self._need = self._have + 1
            return None
        start, end = span
        if end - start + self._size > self._largest:
            raise MessageTooLarge(f"a message has at most {self._largest} bytes", TOO_BIG)
        if end > self._have:
            self._need = end
            return None
        payload = data[start:end]
        if self._mask_bit:
            payload = apply_mask(data[start - 4 : start], payload)
        self._received = [data[end:]] if self._have > end else []
        self._have, self._need = self._have - end, 2
        return data[0], payload

    def _check(self, first: int, second: int) -> None:
        is_control = first & KIND >= CLOSE
        if first & RESERVED or second & MASKED != self._mask_bit:
            raise ProtocolError("what came is no frame: a reserved bit is set, or the mask is wrong")
        if is_control and (second & 0x7F > _LONGEST_CONTROL_BYTES or not first & FINAL):
            raise ProtocolError("a frame that controls the connection is too long, or is a fragment")
        if first & KIND not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG):
            raise ProtocolError(f"there are no frames of the kind {first & KIND}")
        if not is_control and (first & KIND == CONTINUATION) != bool(self._kind):
            raise ProtocolError("a message begins within another, or goes on without one")

    def _joined(self, first: int, payload: bytes) -> Message | None:
        """Add a frame to the message that it belongs to; return the message once it is complete."""
        self._kind = self._kind or first & KIND
        self._fragments.append(payload)
        self._size += len(payload)
        if not first & FINAL:
            return None
        message = Message(self._kind, b"".join(self._fragments))
        self._fragments, self._kind, self._size = [], CONTINUATION, 0
        if message.kind == TEXT:
            try:
                message.payload.decode()
            except UnicodeDecodeError:
                raise ProtocolError("a text is no UTF-8", INVALID_DATA) from None
        return message


# Connections


class WebSocket:
    """Client end of a WebSocket connection."""

    def __init__(self, connected: TimedSocket, largest: int) -> None:
        self._socket, self._reader = connected, FrameReader(masked=False, largest=largest)
        if connected.ahead:
            self._reader.feed(connected.ahead)

    def send(
        self, message: bytes, deadline: float | None = None, before: bytes = b"", *, kind: int = BINARY
    ) -> None:
        """Send the messages ``before``, unless it is empty, and ``message``; short ones in one system call.

        ``kind`` is ``BINARY`` or ``TEXT``; the bytes of a text are UTF-8.
        """
        data = frame_of(before, masked=True, kind=kind) if before else b""
        if len(message) < _CHUNK_BYTES:
            self._socket.send_all(data + frame_of(message, masked=True, kind=kind), deadline)
            return
        for part in chain((data,), frame_parts(message, masked=True, kind=kind)):
            self._socket.send_all(part, deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Return the next message, and answer pings before it; raise :class:`ConnectionClosed` at a close frame."""
        while True:
            while (found := self._reader.next()) is None:
                most = min(max(self._reader.missing, _CHUNK_BYTES), _LARGEST_CHUNK_BYTES)
                data = self._socket.receive_some(most, deadline)
                if not data:
                    raise ConnectionResetError("the peer has closed the connection")
                self._reader.feed(data)
            kind, payload = found
            if kind < CLOSE:
                return payload
            if kind == CLOSE:
                raise ConnectionClosed(payload)
            if kind == PING:
                self._socket.send_all(frame_of(payload, masked=True, kind=PONG), deadline)

    @property
    def has_received(self) -> bool:
        """Whether bytes have arrived after the last message, which ``poll`` on the descriptor does not report."""
        return self._reader.has_bytes

    def fileno(self) -> int:
        """Return the file descriptor, for ``poll``; -1 after :meth:`close`."""
        return self._socket.fileno()

    def cut(self) -> None:
        """Shut the connection down from any thread, which wakes the one that sends or receives on it."""
        self._socket.cut()

    def close(self) -> None:
        """Close the connection without a close frame."""
        self._socket.close()


def open_websocket(
    url: str,
    path: str,
    deadline: float,
    headers: Mapping[str, str],
    *,
    largest: int,
    at: Callable[[], tuple[str, int] | None] | None = None,
) -> WebSocket:
    """Connect to a server and do the WebSocket handshake; a proxy in between must open a tunnel.

    ``largest`` limits the bytes of a message, and ``at`` returns a host and port to connect to instead. Raise
    :class:`HandshakeRefused` if the response does not switch to a WebSocket.
    """
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
    ours = {"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    with HttpConnection(url, at=at, tunnels=True) as connection:
        response = connection.request("GET", path, deadline, {**upgrade, **ours, **headers})
        if response.status != _SWITCHING_PROTOCOLS:
            raise HandshakeRefused(response.status, response.body(_LARGEST_REFUSAL_BYTES))
        if response.headers.get("Sec-WebSocket-Accept", "").strip() != accept_token(key):
            raise ProtocolError("the handshake was answered for another key")
        return WebSocket(connection.detach(), largest)


def accept_token(key: str) -> str:
    """Return the value of ``Sec-WebSocket-Accept`` for the key of a client's handshake."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
