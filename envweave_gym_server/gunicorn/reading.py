"""Requests that come piece by piece: how long one may take for that, and how many may at once."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time

from gunicorn.http.unreader import SocketUnreader

PROMPT = 0.5
"""So many seconds a thread waits for a first byte, and the head of any request may take."""
_SLOW = 32
"""So many clients may take longer, at once: each keeps a thread, and has not shown a token yet."""
_PIECE = 64 << 10
"""So many bytes of a body are to come in the time that a whole head has."""


class Waits:
    """How long clients may take before they have asked for anything, for all connections of a server."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._places = threading.BoundedSemaphore(_SLOW)

    def take(self) -> bool:
        """A place among those that take long, if there is one."""
        return self._places.acquire(blocking=False)

    def leave(self) -> None:
        """Give the place back."""
        self._places.release()


class Reading(SocketUnreader):
    """Reads the requests of a connection; one that does not come to its end in time raises ``TimeoutError``.

    The time counts from the first byte to the last: a client that sends one now and then gains nothing.
    """

    def __init__(self, client: socket.socket, waits: Waits) -> None:
        super().__init__(client)
        self.gave_up = False
        """Whether a head was too slow: then there is nothing to say, and nobody to wait for."""
        self._waits = waits
        self._in_head, self._has_place = False, False
        self._prompt = self._until = 0.0
        self._piece = 0

    def begin(self) -> None:
        """The head of a request follows."""
        now = time.monotonic()
        self._in_head = True
        self._prompt, self._until = now + PROMPT, now + self._waits.seconds

    def end_head(self) -> None:
        """The head has come, or is given up; a body may follow."""
        self._in_head, self._piece = False, 0
        self._until = time.monotonic() + self._waits.seconds
        if self._has_place:
            self._has_place = False
            self._waits.leave()

    def chunk(self, size_hint: int | None = None) -> bytes:
        """The next bytes of the request."""
        if self._in_head and not self._has_place and not self._comes_by(self._prompt):
            self._has_place = self._waits.take()
            if not self._has_place:
                raise self._too_slow()
        if not self._comes_by(self._until):
            raise self._too_slow()
        data: bytes = super().chunk(size_hint)  # pyright: ignore[reportCallIssue] - its stubs are older
        self._piece += len(data)
        if self._piece >= _PIECE and not self._in_head:
            self._piece, self._until = 0, time.monotonic() + self._waits.seconds
        return data

    def _too_slow(self) -> TimeoutError:
        self.gave_up = self._in_head
        return TimeoutError(errno.EAGAIN, "the request does not come to its end in time")

    def _comes_by(self, until: float) -> bool:
        left, own = until - time.monotonic(), self.sock.gettimeout()
        return is_readable(self.sock, left if own is None else min(left, own))


def is_readable(client: socket.socket, seconds: float) -> bool:
    """Whether something comes in so many seconds; never, where those are over."""
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return seconds > 0 and bool(poll.poll(seconds * 1000))
