"""One connection of the model port: a thread reads its requests, and any thread sends the answers."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from envweave_gym.programs.port.http_requests import HttpRequest, Refused, RequestReader, response

if TYPE_CHECKING:
    from envweave_gym.programs.port.call import Call

_SEND_DEADLINE_S = 30
_DRAIN_DEADLINE_S = 10.0
"""Longest time in which the rest of a refused body is read: until then its sender does not look for the answer."""
_PIECE_BYTES = 1 << 18
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """One connection; ``call`` is the call that waits for its answer.

    ``check`` is called with each head, and ``handle`` with each request; both may raise :class:`Refused`. ``error``
    makes the body of an error, of the head as far as it is known.
    """

    def __init__(
        self,
        connected: socket.socket,
        check: Callable[[HttpRequest], None],
        handle: Callable[[HttpRequest, Connection], None],
        error: Callable[[HttpRequest | None, Refused], bytes],
    ) -> None:
        connected.setblocking(True)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A timeout of sending alone, as another thread waits for data meanwhile.
        timeout = struct.pack("@ll", _SEND_DEADLINE_S, 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self._socket = connected
        self._check, self._handle, self._error = check, handle, error
        self._reader = RequestReader(self._checked)
        self._head: HttpRequest | None = None
        self.call: Call | None = None
        self._answered: Call | None = None
        """The last call that was answered here."""
        self.since: float | None = time.monotonic()
        """When the request that is arriving began, or the connection, which must bring one."""
        self.has_asked = False
        """Whether the head of a request has arrived."""
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Read requests until the peer or the port closes the connection."""
        try:
            while data := self._receive():
                self._read(data)
        except Refused as error:
            self._refuse(error)
        finally:
            self._end()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_PIECE_BYTES)
        except ConnectionResetError:
            if self._answered is not None:
                self._answered.was_reset(self)
            return b""
        except OSError:
            return b""

    def _read(self, data: bytes) -> None:
        request = self._reader.feed(data)
        while request is not None:
            if self.call is not None:  # anything sent now would be taken for the answer to that call
                self.hang_up()
                return
            # The peer has read the answer before.
            self.since = self._answered = None
            self._handle(request, self)
            request = self._reader.feed(b"")
        self.since = None if self._reader.is_idle else self.since or time.monotonic()

    def _checked(self, head: HttpRequest) -> None:
        self._head = head
        self.has_asked = True
        self._check(head)
        if head.headers.get("expect", "").lower() == "100-continue":
            self.send(_CONTINUE)

    def _refuse(self, error: Refused) -> None:
        body = self._error(self._head, error)
        with self._sending:
            if self.call is not None:  # it would be taken for the answer to the call before
                return
            self._send(response(error.status, "application/json", body, closes=True))
        deadline, missing = time.monotonic() + _DRAIN_DEADLINE_S, self._reader.missing
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while missing > 0 and (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not (data := self._socket.recv(_PIECE_BYTES)):
                    break
                missing -= len(data)

    def _end(self) -> None:
        with self._sending:
            call, self.call = self.call, None
            self._socket.close()
        if call is not None:
            call.disconnected(self)

    def has_ended(self) -> bool:
        """Return whether the peer has closed the connection, without a wait."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def finish(self, call: Call, data: bytes, *, close: bool = False, is_slow: bool = False) -> bool:
        """Send the response to ``call`` unless it is gone; return whether it was sent as a whole.

        A slow one is not sent if the peer has closed the connection, which its thread may not have noticed yet.
        """
        with self._sending:
            if self.call is not call:
                return False
            # Before the peer can send its next request.
            self.call, self._answered = None, call
            # Sending to a peer that is gone succeeds at first. Looking at each answer would cost 15 us.
            sent = not (is_slow and self.has_ended()) and self._send(data)
            if close or not sent:
                self.hang_up()
            return sent

    def send(self, data: bytes, *, close: bool = False) -> None:
        """Send a response that the port gives itself."""
        with self._sending:
            self._send(data)
            if close:
                self.hang_up()

    def send_at_once(self, data: bytes) -> None:
        """Send a few bytes without a wait, and close the connection if the peer does not take them."""
        with self._sending:
            try:
                is_sent = self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
            except OSError:
                is_sent = False
            if not is_sent:
                self.hang_up()

    def _send(self, data: bytes) -> bool:
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def hang_up(self) -> None:
        """Shut the connection down; its thread then closes it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close the descriptor in a forked process, where no other thread is left."""
        self.call = None
        self._socket.close()
