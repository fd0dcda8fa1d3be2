"""Frames over a socket between a server and a worker: the length, a status where it is a reply, the bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 16

NOT_DONE, DONE = b"\0", b"\1"
"""The first byte of a reply: whether the call was done."""


class TooLong(Exception):
    """The other end announces more bytes than are wanted of it."""


def send(connection: socket.socket, frame: bytes) -> None:
    """Send one frame."""
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def receive(connection: socket.socket, most: int | None = None) -> bytes:
    """The next frame; ``ConnectionError`` where the other end has gone.

    Nobody sends a second frame before the first is answered, so what one read brings is of one frame.
    """
    data = connection.recv(_CHUNK)
    while len(data) < _LENGTH.size:
        data += _more(connection, _LENGTH.size - len(data))
    length = _LENGTH.unpack_from(data)[0]
    if most is not None and length > most:
        raise TooLong(f"{length} bytes, and a frame has at most {most}")
    missing = length + _LENGTH.size - len(data)
    if missing == 0:
        return data[_LENGTH.size :]
    parts = [data[_LENGTH.size :]]
    while missing:
        parts.append(_more(connection, min(missing, 1 << 20)))
        missing -= len(parts[-1])
    return b"".join(parts)


def _more(connection: socket.socket, most: int) -> bytes:
    data = connection.recv(most)
    if not data:
        raise ConnectionResetError("the other end has gone")
    return data
