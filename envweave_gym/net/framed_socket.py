"""Length-prefixed frames over a Unix stream socket, between processes of one user on one machine.

A frame is its length as four bytes, little-endian, and then its content. An address is the path of a socket, or
``@`` and a name in Linux's abstract namespace. An abstract socket has no file: it disappears with the process
that listens, and is visible in one network namespace only.

Large frames go through shared memory (:mod:`envweave_gym.net.shared_memory`). An end that has received a large
frame over the socket passes a memory file to its peer, before the next frame that it sends. The peer writes
later large frames into that file. Two reserved length values announce a memory file, and a frame in the file.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from contextlib import suppress
from time import monotonic

from envweave_gym.net.deadlines import WAIT_S, TimedSocket
from envweave_gym.net.shared_memory import SHARED_FRAME, SharedMemory, new_memory
from envweave_gym.os_support.process_local import in_forked_child

LARGEST_FRAME = 1 << 30
"""Default limit, in bytes, of a frame that is received."""

_LENGTH = struct.Struct("<I")
_IN_MEMORY, _MEMORY_FILE = 0xFFFFFFFF, 0xFFFFFFFE
"""Reserved lengths that announce a frame in shared memory, and a memory file.

After ``_IN_MEMORY`` follows the length of the frame, after ``_MEMORY_FILE`` four unused bytes.
"""
_MARKED = struct.Struct("<II")
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 128
# Waking a process up on another, idle core takes longer than a step of a small environment (37 us a step, 14 with
# polling). Polling cannot succeed where both processes share a core, or where the peer computes for longer; so after
# a failure many frames are waited for without it, which keeps its cost below 1 us a frame. It holds no lock.
POLL_S = 100e-6
_UNPOLLED = 100
"""The number of frames that are not polled for after polling has failed."""


class FrameTooLarge(ConnectionError):
    """Error if the peer announces a frame above the limit; the connection cannot be used any more."""


class FramedSocket(TimedSocket):
    """One end of a connection that sends and receives whole frames."""

    def __init__(
        self, connected: socket.socket, largest: int = LARGEST_FRAME, poll_s: float = POLL_S
    ) -> None:
        """``poll_s``: seconds that :meth:`receive` polls for a frame before it sleeps, while polling succeeds."""
        super().__init__(connected)
        self._largest, self._poll_s = largest, poll_s
        self._incoming: SharedMemory | None = None
        self._outgoing: SharedMemory | None = None
        self._missing = 0
        """Size of the last large frame that came over the socket; 0 once a memory file was passed.

        While it is not 0, :meth:`send` first passes the peer a memory file for such frames.
        """
        self._unpolled = 0
        """The number of next frames for which :meth:`receive` does not poll."""
        self._awaits_file = False
        """Whether a large frame was sent over the socket, after which the peer will pass a memory file."""
        self._descriptors: list[int] = []
        """Descriptors of memory files that were received, and that the peer has not announced yet."""

    def send(self, frame: bytes, deadline: float | None = None, before: bytes = b"") -> None:
        """Send the frame ``before``, unless it is empty, and then ``frame``.

        Small ones go out in one system call, so that the peer wakes up once.
        """
        if len(before) >= SHARED_FRAME:
            self.send(before, deadline)
            before = b""
        if self._missing:
            self._pass_memory_file(deadline)
        is_small = len(frame) < SHARED_FRAME
        data = _LENGTH.pack(len(frame)) + frame if is_small else self._shared(frame)
        if before:
            data = _LENGTH.pack(len(before)) + before + data
        try:  # the kernel takes what fits into its buffer at once, so that there is nothing to wait for
            sent = self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent != len(data):
            self.send_all(memoryview(data)[sent:], deadline)

    def receive(self, deadline: float | None = None) -> bytes:
        """Receive the next frame; after a ``TimeoutError`` the next call continues with the same frame.

        Raise ``ConnectionResetError`` if the peer has closed its end.
        """
        # Most frames come whole and alone, before a deadline that is far away: then one system call does.
        if not (self.ahead or self._awaits_file) and self._limits[socket.SO_RCVTIMEO] == (
            0.0 if deadline is None else WAIT_S if deadline - monotonic() > WAIT_S else -1.0
        ):
            try:
                self.ahead = data = self._receive_soon()
            except BlockingIOError:
                data = b""
            if len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
                self.ahead = b""
                return data[_LENGTH.size :]
        while True:
            self.fill(_LENGTH.size, deadline)
            size = _LENGTH.unpack_from(self.ahead)[0]
            if size < _MEMORY_FILE:
                return self._over_socket(size, deadline)
            self.fill(_MARKED.size, deadline)
            number = _MARKED.unpack_from(self.ahead)[1]
            self.ahead = self.ahead[_MARKED.size :]
            if size == _IN_MEMORY:
                self._check_size(number)
                if self._incoming is None:
                    raise ConnectionResetError("a frame in shared memory, where there is none")
                return self._incoming.take(number)
            self._adopt_memory_file()

    def _receive_soon(self) -> bytes:
        """Receive up to a small frame; poll for a moment before sleeping, where polling succeeded the last time."""
        receive = self.socket.recv
        if self._unpolled:
            self._unpolled -= 1
            return receive(SHARED_FRAME)
        until = monotonic() + self._poll_s
        while monotonic() < until:
            try:
                return receive(SHARED_FRAME, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        self._unpolled = _UNPOLLED
        return receive(SHARED_FRAME)

    def _over_socket(self, size: int, deadline: float | None) -> bytes:
        self._check_size(size)
        end = _LENGTH.size + size
        self.fill(end, deadline)
        frame, self.ahead = self.ahead[_LENGTH.size : end], self.ahead[end:]
        if size >= SHARED_FRAME and (self._incoming is None or size > self._incoming.capacity):
            self._missing = size
        return frame

    def _check_size(self, size: int) -> None:
        if size > self._largest:
            raise FrameTooLarge(f"a frame of {size} bytes, where {self._largest} are the limit")

    def receive_some(self, most: int, deadline: float | None = None) -> bytes:
        """Receive 1 to ``most`` bytes like :class:`TimedSocket`, and keep a descriptor that comes with them."""
        if not self._awaits_file:
            return super().receive_some(most, deadline)
        while True:
            self._limit(socket.SO_RCVTIMEO, deadline)
            with suppress(BlockingIOError):
                data, descriptors, *_ = socket.recv_fds(self.socket, most, 1, socket.MSG_CMSG_CLOEXEC)
                self._descriptors += descriptors
                for surplus in self._descriptors[:-1]:
                    os.close(surplus)
                del self._descriptors[:-1]
                return data

    # Shared memory

    def _shared(self, frame: bytes) -> bytes:
        """Write a large frame to shared memory; return the header to send for it, or the frame if it does not fit."""
        memory = self._outgoing
        if memory is not None and memory.put(frame):
            return _MARKED.pack(_IN_MEMORY, len(frame))
        # Both ends know the capacity, so both know that another file is to come.
        self._awaits_file = self._awaits_file or memory is None or len(frame) > memory.capacity
        return _LENGTH.pack(len(frame)) + frame

    def _pass_memory_file(self, deadline: float | None) -> None:
        """Pass the peer a new memory file for the frames that it sends, or report that none could be made."""
        if self._incoming is not None:
            self._incoming.close()
        made, self._missing, self._incoming = new_memory(self._missing), 0, None
        if made is None:
            self.send_all(_MARKED.pack(_MEMORY_FILE, 0), deadline)
            return
        self._incoming, descriptor = made
        try:
            while True:
                self._limit(socket.SO_SNDTIMEO, deadline)
                with suppress(BlockingIOError):
                    socket.send_fds(self.socket, [_MARKED.pack(_MEMORY_FILE, 0)], [descriptor])
                    return
        finally:
            os.close(descriptor)

    def _adopt_memory_file(self) -> None:
        """Map the memory file that the peer has passed; without one, large frames go over the socket."""
        self._awaits_file = False
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
        for descriptor in self._descriptors:
            with suppress(OSError, ValueError):  # it is none, or there is no memory
                self._outgoing = SharedMemory(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    def close(self) -> None:
        """Close the socket and unmap the memory files."""
        super().close()
        for memory in filter(None, (self._incoming, self._outgoing)):
            memory.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    @property
    def is_hung_up(self) -> bool:
        """Whether an end is closed; any thread may read this, even while another thread receives."""
        if self.fileno() < 0:
            return True
        poll = select.poll()  # select.select takes no descriptors from 1,024 on
        poll.register(self.socket, 0)  # POLLHUP is reported unasked
        return bool(poll.poll(0))


def listen(address: str) -> socket.socket:
    """Return a listening Unix socket.

    Raise ``OSError`` if another process listens at the address, or the system lacks such sockets.
    """
    listener = socket.socket(socket.AF_UNIX)
    in_forked_child(listener, socket.socket.close)
    try:
        listener.bind(_native(address))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket, largest: int = LARGEST_FRAME) -> FramedSocket:
    """Wait for the next connection and return it; raise ``PermissionError`` if the peer is another user's process."""
    peer = FramedSocket(listener.accept()[0], largest)
    _check_user(peer)
    return peer


def connect(address: str, deadline: float | None = None, largest: int = LARGEST_FRAME) -> FramedSocket:
    """Connect to an address; raise ``PermissionError`` if another user's process listens there.

    If the backlog of the listener is full, this waits until the deadline.
    """
    peer = FramedSocket(socket.socket(socket.AF_UNIX), largest)
    try:
        while True:
            peer._limit(socket.SO_SNDTIMEO, deadline)  # the kernel applies it to connect() too
            with suppress(BlockingIOError):
                peer.socket.connect(_native(address))
                break
    except BaseException:
        peer.close()
        raise
    _check_user(peer)
    return peer


def _native(address: str) -> str:
    return f"\0{address[1:]}" if address.startswith("@") else address


def _check_user(peer: FramedSocket) -> None:
    """Raise ``PermissionError`` and close the connection if the peer is another user's process.

    On systems that do not report the peer's user, the mode of the socket's folder has to keep other users out.
    """
    if hasattr(socket, "SO_PEERCRED"):
        credentials = peer.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(credentials)[1]
        if user != os.getuid():
            peer.close()
            raise PermissionError(f"the peer is a process of user {user}, not of user {os.getuid()}")
