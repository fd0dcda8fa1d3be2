"""Frames over plain HTTP, one in the body of a request, where WebSockets are blocked."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Any

from envweave_gym.remote.address import Address, unix_path
from envweave_gym.remote.dialling import proxy_for, trusted
from envweave_gym.remote.errors import distrust_in, raise_foreign, untrusted
from envweave_gym.remote.transport import left, too_late
from envweave_gym.wire.framing import CONTENT_TYPE, LARGEST_REPLY

_PIECE = 1 << 16


class HttpTransport:
    """One request for each frame, the next after the reply to the last.

    They are made in a thread of their own, so that many servers can be waited for at once, and one be left
    when the deadline is over. Closing cuts the request that is under way and makes no other.
    """

    def __init__(self, address: Address, path: str) -> None:
        import requests

        from envweave_gym.remote.connections import CuttableSession

        self._address, self._requests = address, requests
        self._session = CuttableSession(proxy_for(address.url), trusted(), unix_path(address.url))
        self._url, self._headers = address.url, {**address.headers(), "Content-Type": CONTENT_TYPE}
        self._path = address.web + path
        self._frames: SimpleQueue[tuple[bytes, float] | None] = SimpleQueue()
        self._replies: SimpleQueue[bytes | Exception] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it."""
        if before:
            self.send(before, deadline)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"frames to {self._url}", daemon=True)
            self._thread.start()
        self._frames.put((frame, deadline))

    def receive(self, deadline: float) -> bytes:
        """The reply to the oldest frame whose reply has not been received."""
        try:
            reply = self._replies.get(timeout=left(deadline, self._url))
        except Empty:
            raise too_late(self._url) from None
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _work(self) -> None:
        """Make one request after the other; the first that fails is the last."""
        while (call := self._frames.get()) is not None and not self._session.is_cut:
            try:
                self._replies.put(self._post(*call))
            except Exception as error:  # noqa: BLE001 - receive raises it
                self._replies.put(error)
                return

    def _post(self, frame: bytes, deadline: float) -> bytes:
        self._address.revive()
        try:
            seconds = left(deadline, self._url)
            with self._session.post(
                self._path, frame, headers=self._headers, timeout=seconds, stream=True
            ) as response:
                body, status = self._body(response), response.status_code
        except self._requests.Timeout:
            raise too_late(self._url) from None
        except self._requests.RequestException as error:
            distrust = distrust_in(error)
            if distrust is not None:
                raise untrusted(self._url, distrust) from None
            raise ConnectionError(f"{self._url} does not answer: {error}") from None
        if not response.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
            raise_foreign(status, body, self._url)
        return body

    def _body(self, response: Any) -> bytes:
        body = bytearray()
        for piece in response.iter_content(_PIECE):
            body += piece
            if len(body) > LARGEST_REPLY:
                raise ConnectionError(f"{self._url}: what came is larger than any reply")
        return bytes(body)

    def close(self) -> None:
        """Hang up."""
        self._session.cut()
        self._frames.put(None)
