"""Reader of requests with a time limit for each, and a limit of slow clients at the same time."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time

from gunicorn.http.unreader import SocketUnreader

PROMPT_S = 0.5
"""Time that a thread waits for the first byte, and that the head of any request may take."""
_SLOW_LIMIT = 32
"""Limit of clients whose heads take longer at the same time.

Each keeps a thread, and has not shown a token yet.
"""
_PIECE_BYTES = 64 << 10
"""Bytes of a body that must arrive in the time that a whole head has."""


class SlowClients:
    """Semaphore that limits how many clients may take longer than ``PROMPT_S`` to send the head of a request.

    ``limit_s`` is the time limit of such a client in seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.slots = threading.BoundedSemaphore(_SLOW_LIMIT)


class RequestReader(SocketUnreader):
    """Reader of a connection's bytes, which raises ``TimeoutError`` for a request that does not end in time.

    The time counts from the first byte to the last, so a client gains nothing by sending a byte now and then.
    """

    def __init__(self, client: socket.socket, slow: SlowClients) -> None:
        super().__init__(client)
        self.head_timed_out = False
        """Whether the head of a request was too slow; the client then gets no response."""
        self._slow = slow
        self._in_head, self._has_slot = False, False
        self._prompt_until = self._until = 0.0
        self._piece = 0

    def begin_head(self) -> None:
        """Start the time limits for the head of a request."""
        now = time.monotonic()
        self._in_head = True
        self._prompt_until, self._until = now + PROMPT_S, now + self._slow.limit_s

    def end_head(self) -> None:
        """Free the slot, and start the time limit for a body; the head has arrived or was given up."""
        self._in_head, self._piece = False, 0
        self._until = time.monotonic() + self._slow.limit_s
        if self._has_slot:
            self._has_slot = False
            self._slow.slots.release()

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Return the next bytes of the request; raise ``TimeoutError`` if none come before its time limit.

        ``size_hint`` is the preferred number of bytes, which gunicorn's reader passes to ``recv``.
        """
        if self._in_head and not self._has_slot and not self._comes_by(self._prompt_until):
            self._has_slot = self._slow.slots.acquire(blocking=False)
            if not self._has_slot:
                raise self._timeout()
        if not self._comes_by(self._until):
            raise self._timeout()
        data: bytes = super().chunk(size_hint)  # pyright: ignore[reportCallIssue] - its stubs are older
        self._piece += len(data)
        if self._piece >= _PIECE_BYTES and not self._in_head:
            self._piece, self._until = 0, time.monotonic() + self._slow.limit_s
        return data

    def _timeout(self) -> TimeoutError:
        self.head_timed_out = self._in_head
        return TimeoutError(errno.EAGAIN, "the request does not come to its end in time")

    def _comes_by(self, until: float) -> bool:
        left, own = until - time.monotonic(), self.sock.gettimeout()
        return is_readable(self.sock, left if own is None else min(left, own))


def is_readable(client: socket.socket, seconds: float) -> bool:
    """Return whether bytes arrive within ``seconds``; ``False`` if ``seconds`` is not positive."""
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return seconds > 0 and bool(poll.poll(seconds * 1000))
