"""The frames that carry our messages: in the bodies of HTTP, and in WebSockets, whole and binary.

A protocol library spends more on a frame of a WebSocket than a small environment on a step. So both sides
look at the head of a frame, and take one that is whole and binary themselves.
"""

from __future__ import annotations

import struct

CONTENT_TYPE = "application/msgpack"
"""What the body of an HTTP request or response is that is a frame."""

FINAL, RESERVED, KIND = 0x80, 0x70, 0x0F
"""The bits of the first byte of a frame: whether it ends a message, what must be 0, and its kind."""

MASKED = 0x80
"""The bit of the second byte of a frame that tells whether it has a mask, as those of clients have."""

CLOSE, PING, PONG = 0x8, 0x9, 0xA
"""The kinds of frames that carry no message."""

WHOLE_BINARY = 0x82
"""The first byte of a frame that is a binary message of its own."""

LARGEST_REPLY = 1 << 30
"""The limit of a reply in bytes; one that claims to be larger has been mangled on its way."""

TOO_LARGE = b""
"""Over the Unix socket of an actor, in place of a reply that is sent by a call of Ray instead."""


def socket_of_actor(name: str) -> str:
    """The abstract Unix socket at which the actor with this namespace and name listens."""
    return f"@envweave/{name}"


def head_of(size: int, *, masked: bool, first: int = WHOLE_BINARY) -> bytes:
    """The head of a whole frame with so many bytes of payload, without its mask."""
    bit = MASKED if masked else 0
    if size < 126:
        return bytes((first, bit | size))
    if size < 1 << 16:
        return struct.pack("!BBH", first, bit | 126, size)
    return struct.pack("!BBQ", first, bit | 127, size)


def place_of(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int] | None:
    """Where the payload of the frame at ``at`` begins and ends; ``None`` where its head is not whole yet.

    The mask, where there is one, is the four bytes before the payload.
    """
    have = len(data) - at
    if have < 2:
        return None
    short, start = data[at + 1] & 0x7F, at + 2
    wide = {126: 2, 127: 8}.get(short, 0)
    start += wide + (4 if data[at + 1] & MASKED else 0)
    if len(data) < start:
        return None
    size = int.from_bytes(data[at + 2 : at + 2 + wide], "big") if wide else short
    return start, start + size


def masked(key: bytes, payload: bytes | bytearray | memoryview) -> bytes:
    """``payload`` with the mask put on, or taken off."""
    size = len(payload)
    mask = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")).to_bytes(size, "little")
