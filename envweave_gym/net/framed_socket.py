"""Length-prefixed frames over a Unix stream socket, between processes of one user on one machine.

A frame is its length, four bytes with the lowest first, and as many bytes. An address is the path of a
socket, or ``@`` and a name in Linux's abstract namespace. An abstract socket has no file: it is gone with the
process that listens, and it is seen in one network namespace only.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from time import monotonic

from envweave_gym.net.deadlines import WAIT_S, TimedSocket

LARGEST_FRAME = 1 << 30
"""The default limit, in bytes, of a frame that is received."""

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128
_SMALL_FRAME = 1 << 16
"""Bytes; a smaller frame is sent, and usually received, in one system call."""


class FrameTooLarge(ConnectionError):
    """The peer announces a frame that is larger than the limit; the connection is of no more use."""


class FramedSocket(TimedSocket):
    """One end of a connection over which frames travel."""

    def __init__(self, connected: socket.socket, largest: int = LARGEST_FRAME) -> None:
        super().__init__(connected)
        self._largest = largest

    def send(self, frame: bytes, deadline: float | None = None, before: bytes = b"") -> None:
        """Send a frame, and one ``before`` it in the same system call, which wakes the peer once."""
        if len(frame) < _SMALL_FRAME and not before:
            data = _LENGTH.pack(len(frame)) + frame
            try:  # the kernel takes what fits into its buffer at once, so that there is nothing to wait for
                sent = self.socket.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if sent != len(data):
                self.send_all(memoryview(data)[sent:], deadline)
            return
        parts = (_LENGTH.pack(len(frame)), frame)
        self.send_parts((_LENGTH.pack(len(before)), before, *parts) if before else parts, deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Receive the next frame; after a ``TimeoutError`` the next call goes on with the same one.

        ``ConnectionResetError`` when the peer has closed its end.
        """
        if not self.ahead and self._limits[socket.SO_RCVTIMEO] == (
            0.0 if deadline is None else WAIT_S if deadline - monotonic() > WAIT_S else -1.0
        ):
            try:  # most frames come whole and alone, before a deadline that is far away
                self.ahead = data = self.socket.recv(_SMALL_FRAME)
            except BlockingIOError:
                data = b""
            if len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
                self.ahead = b""
                return data[_LENGTH.size :]
        if len(self.ahead) < _LENGTH.size:
            self.fill(_LENGTH.size, deadline)
        size = _LENGTH.unpack_from(self.ahead)[0]
        if size > self._largest:
            raise FrameTooLarge(f"a frame of {size} bytes, where {self._largest} are the limit")
        end = _LENGTH.size + size
        if len(self.ahead) < end:
            self.fill(end, deadline)
        frame, self.ahead = self.ahead[_LENGTH.size : end], self.ahead[end:]
        return frame

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed its end; any thread may ask, also while another receives."""
        poll = select.poll()  # select.select takes no descriptors from 1,024 on
        poll.register(self.socket, 0)  # POLLHUP is reported unasked
        return bool(poll.poll(0))


def listen(address: str) -> socket.socket:
    """Listen at an address; ``OSError`` if another listens there, or the system has no such sockets."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(_native(address))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket, largest: int = LARGEST_FRAME) -> FramedSocket:
    """Wait for the next connection; ``PermissionError`` if the peer is a process of another user."""
    peer = FramedSocket(listener.accept()[0], largest)
    _check_user(peer)
    return peer


def connect(address: str, deadline: float | None = None, largest: int = LARGEST_FRAME) -> FramedSocket:
    """Connect to an address; ``PermissionError`` if a process of another user listens there.

    While the queue of the listener is full this waits, until the deadline.
    """
    peer = FramedSocket(socket.socket(socket.AF_UNIX), largest)
    try:
        peer._limit(socket.SO_SNDTIMEO, deadline)  # the kernel applies it to connect() too
        peer.socket.connect(_native(address))
    except BlockingIOError:
        peer.close()
        raise TimeoutError(f"{address} has accepted no connection before the deadline") from None
    except BaseException:
        peer.close()
        raise
    _check_user(peer)
    return peer


def _native(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address


def _check_user(peer: FramedSocket) -> None:
    """Refuse a peer of another user, where the system says who it is; else the mode of the folder has to."""
    if hasattr(socket, "SO_PEERCRED"):
        credentials = peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(credentials)[1]
        if user != os.getuid():
            peer.close()
            raise PermissionError(f"the peer is a process of user {user}, not of user {os.getuid()}")
