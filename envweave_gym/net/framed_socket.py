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
import time
from collections.abc import Iterable
from contextlib import suppress

LARGEST_FRAME = 1 << 30
"""The default limit, in bytes, of a frame that is received."""

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("ll")
_CHUNK, _LARGEST_CHUNK = 1 << 16, 1 << 20
_JOINED_BYTES = 1 << 16
"""Up to this size, copying a frame behind its length costs less than a second buffer of the system call."""
_WAIT_S = 1.0
"""The longest wait of one system call: deadlines that are farther away need not be set for each."""
_BACKLOG = 128


class FrameTooLarge(ConnectionError):
    """The peer announces a frame that is larger than the limit; the connection is of no more use."""


class FramedSocket:
    """One end of a connection, which reads ahead; one thread may send while another receives.

    Deadlines are times of ``time.monotonic`` and hold for the whole frame; ``None`` waits forever. After a
    ``TimeoutError`` :meth:`receive` may be called again, and goes on with the same frame; after one while
    sending, the connection is of no more use.
    """

    def __init__(self, connected: socket.socket, largest: int = LARGEST_FRAME) -> None:
        # A timeout of Python's polls before each call, which costs 2 us a frame; the kernel's costs 0.2 us.
        connected.setblocking(True)
        self.socket, self._largest = connected, largest
        self._limits = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}
        self._ahead = b""

    def send(self, frame: bytes, deadline: float | None = None) -> None:
        """Send one frame."""
        if len(frame) < _JOINED_BYTES:
            self._send_all(_LENGTH.pack(len(frame)) + frame, deadline)
        else:
            self.send_many((frame,), deadline)

    def send_many(self, frames: Iterable[bytes], deadline: float | None = None) -> None:
        """Send frames in one system call, which wakes the peer once."""
        parts = [part for frame in frames for part in (_LENGTH.pack(len(frame)), frame)]
        self._limit(socket.SO_SNDTIMEO, deadline)
        try:
            sent = self.socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        for part in parts:
            if sent < len(part):
                self._send_all(memoryview(part)[sent:], deadline)
            sent = max(sent - len(part), 0)

    def _send_all(self, data: bytes | memoryview, deadline: float | None) -> None:
        while data:
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                continue
            if sent == len(data):
                return
            data = memoryview(data)[sent:]

    def receive(self, deadline: float | None = None) -> bytes:
        """Receive the next frame; ``ConnectionResetError`` when the peer has closed its end."""
        data = self._ahead or self._read(_CHUNK, deadline)
        while len(data) < _LENGTH.size:
            self._ahead = data
            data += self._read(_CHUNK, deadline)
        size = _LENGTH.unpack_from(data)[0]
        if size > self._largest:
            raise FrameTooLarge(f"a frame of {size} bytes, where {self._largest} are the limit")
        end = _LENGTH.size + size
        if len(data) < end:
            data = self._read_until(data, end, deadline)
        self._ahead = data[end:]
        return data[_LENGTH.size : end]

    def _read_until(self, data: bytes, size: int, deadline: float | None) -> bytes:
        """Read on behind ``data`` until there are ``size`` bytes; what has come is retained if that fails."""
        parts, missing = [data], size - len(data)
        try:
            while missing > 0:
                parts.append(self._read(min(max(missing, _CHUNK), _LARGEST_CHUNK), deadline))
                missing -= len(parts[-1])
        finally:
            self._ahead = b"".join(parts)
        return self._ahead

    def _read(self, most: int, deadline: float | None) -> bytes:
        while True:
            self._limit(socket.SO_RCVTIMEO, deadline)
            try:
                data = self.socket.recv(most)
            except BlockingIOError:
                continue
            if not data:
                raise ConnectionResetError("the peer has closed the connection")
            return data

    def _limit(self, option: int, deadline: float | None) -> None:
        """Set how long the next system call may wait; ``TimeoutError`` once the deadline is over."""
        seconds = 0.0  # which the kernel takes for no limit
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the deadline is over")
            seconds = min(max(left, 1e-6), _WAIT_S)
        if seconds != self._limits[option]:
            whole, rest = divmod(seconds, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(rest * 1e6)))
            self._limits[option] = seconds

    @property
    def has_buffered(self) -> bool:
        """Whether bytes have been read ahead of :meth:`receive`, which ``poll`` does not see."""
        return bool(self._ahead)

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed its end; any thread may ask, also while another receives."""
        poll = select.poll()  # select.select takes no descriptors from 1,024 on
        poll.register(self.socket, 0)  # POLLHUP is reported unasked
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Return the descriptor, for ``poll``."""
        return self.socket.fileno()

    def cut(self) -> None:
        """End the connection in both directions, which wakes threads that send or receive."""
        with suppress(OSError):  # the peer was first, or it is closed
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


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
