"""Transport over plain HTTP, for networks that block WebSockets: each frame is the body of a request."""

from __future__ import annotations

import ssl
import threading
from queue import Empty, SimpleQueue

from envweave_gym.net.deadlines import seconds_left, too_late
from envweave_gym.net.http import HttpConnection
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import raise_foreign, untrusted
from envweave_gym.remote.transports import lost
from envweave_gym.wire.messages import CONTENT_TYPE, LARGEST_REPLY


class HttpTransport:
    """Transport that sends each frame in an HTTP request, one after the other.

    A thread makes the requests, so that a caller can wait for many servers at once, and can stop waiting at the
    deadline. :meth:`close` cuts off the current request; queued frames are not sent.
    """

    def __init__(self, address: Address, path: str) -> None:
        self._address, self._url, self._path = address, address.url, path
        self._connection = HttpConnection(address.url, at=address.shortcut)
        self._headers = {**address.headers(), "Content-Type": CONTENT_TYPE}
        self._frames: SimpleQueue[tuple[bytes, float] | None] = SimpleQueue()
        self._replies: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Queue ``frame`` for the thread that sends requests, after the frame ``before`` if that is not empty."""
        if before:
            self.send(before, deadline)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"frames to {self._url}", daemon=True)
            self._thread.start()
        self._frames.put((frame, deadline))

    def receive(self, deadline: float) -> bytes:
        """Return the reply to the oldest unanswered frame."""
        try:
            reply = self._replies.get(timeout=seconds_left(deadline, self._url))
        except Empty:
            raise too_late(self._url) from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _work(self) -> None:
        """Make the requests in order, until one fails or the transport is closed; body of the thread."""
        with self._connection:
            while (call := self._frames.get()) is not None:
                try:
                    self._replies.put(self._post(*call))
                except Exception as error:  # noqa: BLE001 - receive raises it
                    self._replies.put(error)
                    return

    def _post(self, frame: bytes, deadline: float) -> bytes:
        try:
            response = self._connection.request("POST", self._path, deadline, self._headers, frame)
            body = response.body(LARGEST_REPLY)
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self._url, error) from None
        except OSError as error:
            raise lost(self._url, error) from None
        if not response.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
            raise_foreign(response.status, body, self._url)
        return body

    def close(self) -> None:
        """Cut off the current request, and stop the thread."""
        self._connection.cut()
        self._frames.put(None)
