"""Deadlines of network I/O: the time left until a deadline, and sockets whose calls each take a deadline.

A deadline is a value of ``time.monotonic``. A socket's own timeout applies to each piece that arrives, and a
peer may send many pieces. So each wait is limited to the time that is left for the whole message.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress

from envweave_gym.os_support.process_local import in_forked_child

_TIMEVAL = struct.Struct("ll")
_CHUNK_BYTES, _LARGEST_CHUNK_BYTES = 1 << 16, 1 << 20
WAIT_S = 1.0
"""Longest wait of one system call, so that a socket's timeout need not be set for each distant deadline."""


def seconds_left(deadline: float, peer: str) -> float:
    """Return the seconds until a deadline; raise ``TimeoutError`` if it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise too_late(peer)
    return seconds


def too_late(peer: str) -> TimeoutError:
    """Return the ``TimeoutError`` for a ``peer`` that has not answered in time."""
    return TimeoutError(f"{peer} did not answer before the deadline")


class TimedSocket:
    """Connected stream socket with a read-ahead buffer, whose calls take deadlines; ``None`` waits forever.

    One thread may send while another receives, and any thread may call :meth:`cut`. A forked child closes its
    copy, without which the peer sees the parent hang up.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket, self.ahead = connected, b""
        """``ahead``: bytes that were received and not used yet."""
        # A timeout of Python's polls before each call, which costs 2 us a message; the kernel's costs 0.2 us.
        # TLS retries what the kernel has ended, so it has to have Python's.
        self._is_tls = hasattr(connected, "do_handshake")
        self._limits = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}
        if not self._is_tls:
            connected.setblocking(True)
        in_forked_child(self, _close)

    def send_all(self, data: bytes | memoryview, deadline: float | None = None) -> None:
        """Send all bytes; after a ``TimeoutError`` the connection is of no more use."""
        while data:
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                continue
            if sent == len(data):
                return
            data = memoryview(data)[sent:]

    def receive_some(self, most: int, deadline: float | None = None) -> bytes:
        """Receive 1 to ``most`` bytes, not from :attr:`ahead`; return ``b""`` at the end of the connection."""
        while True:
            self._limit(socket.SO_RCVTIMEO, deadline)
            try:
                return self.socket.recv(most)
            except BlockingIOError:
                continue

    def fill(self, size: int, deadline: float | None = None) -> None:
        """Receive until :attr:`ahead` has ``size`` bytes; raise ``ConnectionResetError`` if the peer closes before.

        After a ``TimeoutError`` the bytes received so far are in :attr:`ahead`, and the call may be repeated.
        """
        parts, missing = [self.ahead], size - len(self.ahead)
        try:
            while missing > 0:
                data = self.receive_some(min(max(missing, _CHUNK_BYTES), _LARGEST_CHUNK_BYTES), deadline)
                if not data:
                    raise ConnectionResetError("the peer has closed the connection")
                parts.append(data)
                missing -= len(data)
        finally:
            self.ahead = b"".join(parts) if len(parts) > 1 else self.ahead

    def _limit(self, option: int, deadline: float | None) -> None:
        """Set the timeout ``option`` (such as ``SO_RCVTIMEO``) to the time left; raise ``TimeoutError`` if none is."""
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the deadline is over")
        if self._is_tls:
            self.socket.settimeout(left)
            return
        # the kernel takes 0 for no limit
        seconds = 0.0 if left is None else WAIT_S if left > WAIT_S else max(left, 1e-6)
        if seconds != self._limits[option]:
            whole, rest = divmod(seconds, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(rest * 1e6)))
            self._limits[option] = seconds

    def fileno(self) -> int:
        """Return the file descriptor for ``poll``, which does not see bytes in :attr:`ahead`."""
        return self.socket.fileno()

    def cut(self) -> None:
        """Shut the connection down in both directions, which wakes all threads that send or receive on it."""
        with suppress(OSError):  # the peer was first, or it is closed
            # not the method of a TLS socket, which would take TLS away under the thread that reads
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def _close(one: TimedSocket) -> None:
    one.close()
