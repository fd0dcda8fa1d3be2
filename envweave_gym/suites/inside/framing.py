"""The suite's end of a framed Unix socket; the other end is :class:`envweave_gym.net.framed_socket.FramedSocket`.

A frame is its length as four bytes, little-endian, and then its content. Once a large frame has gone over the socket,
the peer passes a memory file, and later large frames are written there.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time

SHARED_FRAME = 1 << 15
"""Size in bytes from which frames go through shared memory; the same as in ``net/shared_memory.py``."""
_LENGTH, _MARKED = struct.Struct("<I"), struct.Struct("<II")
_IN_MEMORY, _MEMORY_FILE = 0xFFFFFFFF, 0xFFFFFFFE
_HEAD_BYTES = 64
_PIECE_BYTES = 1 << 20
_POLL_S = 100e-6
_UNPOLLED = 100
"""Number of frames that are not polled for after polling has failed."""


class Channel:
    """One end of the connection, for one thread."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._ahead = connected, b""
        self._memory: mmap.mmap | None = None
        self._awaits_file = False
        """Whether a large frame has gone over the socket, after which the peer passes a memory file."""
        self._unpolled = 0
        """Number of next frames for which :meth:`receive` does not poll."""

    def receive(self) -> bytes:
        """Wait for the next frame and return it; raise ``EOFError`` if the peer has closed its end."""
        while True:
            self._fill(_LENGTH.size)
            size = _LENGTH.unpack_from(self._ahead)[0]
            if size != _MEMORY_FILE:
                return self._take(size)
            self._fill(_MARKED.size)
            self._ahead = self._ahead[_MARKED.size :]

    def _take(self, size: int) -> bytes:
        end = _LENGTH.size + size
        self._fill(end)
        frame, self._ahead = self._ahead[_LENGTH.size : end], self._ahead[end:]
        return frame

    def _fill(self, size: int) -> None:
        if len(self._ahead) >= size:
            return
        parts, missing = [self._ahead], size - len(self._ahead)
        while missing > 0:
            data = self._read(min(max(missing, 1 << 16), _PIECE_BYTES), is_first=not self._ahead)
            if not data:
                raise EOFError("the owner has closed the connection")
            parts.append(data)
            missing -= len(data)
        self._ahead = b"".join(parts)

    def _read(self, most: int, is_first: bool) -> bytes:
        if self._awaits_file:
            return self._read_with_file(most)
        if is_first and not self._unpolled:
            until = time.monotonic() + _POLL_S
            while time.monotonic() < until:
                try:
                    return self._socket.recv(most, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
            self._unpolled = _UNPOLLED
        elif self._unpolled:
            self._unpolled -= 1
        return self._socket.recv(most)

    def _read_with_file(self, most: int) -> bytes:
        """Receive bytes, and map the memory file that may come with them."""
        data, ancillary, _, _ = self._socket.recvmsg(most, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptor = struct.unpack("i", content[:4])[0]
                try:
                    self._adopt(descriptor)
                finally:
                    os.close(descriptor)
        return data

    def _adopt(self, descriptor: int) -> None:
        self._awaits_file = False
        if self._memory is not None:
            self._memory.close()
        try:
            self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        except (OSError, ValueError):  # no memory left: large frames go over the socket
            self._memory = None

    def send(self, frame: bytes) -> None:
        """Send a frame; raise ``OSError`` if the peer has closed its end."""
        size = len(frame)
        if size < SHARED_FRAME:
            self._socket.sendall(_LENGTH.pack(size) + frame)
            return
        memory = self._memory
        capacity = 0 if memory is None else len(memory) - _HEAD_BYTES
        if memory is not None and size <= capacity and not memory[0]:
            memory[_HEAD_BYTES : _HEAD_BYTES + size] = frame
            memory[0] = 1
            self._socket.sendall(_MARKED.pack(_IN_MEMORY, size))
            return
        self._awaits_file = self._awaits_file or size > capacity
        self._socket.sendall(_LENGTH.pack(size))
        self._socket.sendall(frame)
