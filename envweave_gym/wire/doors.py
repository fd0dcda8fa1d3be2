"""The short way to a server on the same machine that has no port: frames over a socket that has no file.

The name of such a socket is seen in the network of this machine or container alone, and is gone with the
process that listens, whichever way that ends. Anybody may connect to it, so each side asks the kernel who the
other is, and talks with the same user only.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Sequence

TOO_LARGE = b""
"""Instead of a reply: it is too large for this way. Who reads that asks again in another."""
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_CHUNK, _LARGEST_CHUNK = 1 << 16, 1 << 20


class Door:
    """One end of a connection, which reads ahead."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket, self._ahead = connected, b""

    def send(self, frames: Sequence[bytes]) -> None:
        """Send frames, all at once."""
        self.socket.sendall(
            b"".join([part for frame in frames for part in (_LENGTH.pack(len(frame)), frame)])
        )

    def receive(self) -> bytes:
        """The next frame; ``ConnectionError`` where the other end has gone."""
        data = self._ahead or self._more(_CHUNK)
        while len(data) < _LENGTH.size:
            data += self._more(_CHUNK)
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if len(data) < end:
            parts, missing = [data], end - len(data)
            while missing > 0:
                parts.append(self._more(min(max(missing, _CHUNK), _LARGEST_CHUNK)))
                missing -= len(parts[-1])
            data = b"".join(parts)
        self._ahead = data[end:]
        return data[_LENGTH.size : end]

    @property
    def has_ahead(self) -> bool:
        """Whether something has been read that :meth:`receive` has not given yet."""
        return bool(self._ahead)

    def _more(self, most: int) -> bytes:
        data = self.socket.recv(most)
        if not data:
            raise ConnectionResetError("the other end has gone")
        return data

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def listening(name: str) -> socket.socket | None:
    """A socket that listens at the door of this name; none where it is taken, or the system has no such."""
    if sys.platform != "linux":
        return None
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.bind(_address(name))
        opened.listen(128)
    except OSError:
        opened.close()
        return None
    return opened


def knocked(name: str, timeout: float) -> Door | None:
    """A connection with who listens at this door, where that is this user, on this machine."""
    if sys.platform != "linux":
        return None
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout)
        opened.connect(_address(name))
        if is_same_user(opened):
            return Door(opened)
    except OSError:
        pass
    opened.close()
    return None


def is_same_user(connected: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[1] == os.getuid()


def _address(name: str) -> str:
    return f"\0envweave/{name}"
