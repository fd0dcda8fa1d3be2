"""Submitted operations and their results, by request ids that derive from the client's own sequence numbers.

A repeated request has the same id and finds the first one's future, so nothing is done twice; one with the same id
and another body is refused. Results are dropped some time after the client has fetched them, which bounds the memory.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal

from envweave_gym_server.tinker.api_errors import BadInput, Busy, Gone

JSON, PROTOBUF = "application/json", "application/x-protobuf"
Category = Literal["user", "server"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of an operation, as bytes that are sent to the client."""

    body: bytes
    mimetype: str = JSON
    failed: bool = False


def json_reply(**fields: Any) -> Reply:
    """Return a JSON object as a reply."""
    return Reply(json.dumps(fields).encode())


def failure(error: str, category: Category) -> Reply:
    """Return the reply that the SDK raises as ``RequestFailedError``."""
    return Reply(json.dumps({"error": error, "category": category}).encode(), failed=True)


@dataclass(eq=False, slots=True)
class Future:
    """One operation; ``reply`` is set when it is done."""

    request_id: str
    session_id: str
    digest: bytes = b""
    """That of the request's path and body."""
    size: int = 0
    """Bytes of the request's body, which wait with it."""
    done: threading.Event = field(default_factory=threading.Event)
    reply: Reply | None = None
    cancelled: bool = False
    fetched_at: float | None = None


@dataclass(frozen=True)
class FutureLimits:
    """Limits of the table of futures."""

    pending: int = 20_000
    """Operations that wait; more are refused, and the SDK repeats them."""
    pending_bytes: int = 512 << 20
    """Bytes of their bodies; one session may have half of them, so that others find room."""
    fetched: int = 4096
    """Results that are kept after they were fetched, in case the reply was lost."""
    fetched_s: float = 60.0
    result_bytes: int = 1 << 30
    """Bytes of all results; the oldest go first."""


class Futures:
    """The table of futures, for all clients together."""

    def __init__(self, limits: FutureLimits = FutureLimits()) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._by_id: dict[str, Future] = {}
        self._done: OrderedDict[str, Future] = OrderedDict()
        self._fetched: OrderedDict[str, Future] = OrderedDict()
        self._bytes = 0
        self._waiting: dict[str, int] = {}
        """Bytes of the operations that wait, by session."""

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str, digest: bytes | None = None) -> Future | None:
        """Return the future of a request that was submitted before, or ``None``; refuse one of another digest."""
        known = self._by_id.get(request_id)
        if known is not None and digest is not None and known.digest != digest:
            raise BadInput(
                f"request {request_id} was submitted before with another body; give each request its own number"
            )
        return known

    @property
    def waiting_bytes(self) -> int:
        """The bytes of all operations that wait."""
        return sum(self._waiting.values())

    def add(
        self,
        request_id: str,
        session_id: str,
        digest: bytes = b"",
        size: int = 0,
    ) -> tuple[Future, bool]:
        """Return the future of a request, and whether it is a new one; raise :class:`Busy` over a limit."""
        with self._lock:
            known = self.find(request_id, digest)
            if known is not None:
                return known, False
            pending = len(self._by_id) - len(self._done)
            if pending >= self._limits.pending:
                raise Busy(f"{pending} operations wait here; try again when some are done")
            self._check_bytes(session_id, size)
            future = self._by_id[request_id] = Future(request_id, session_id, digest, size)
            self._waiting[session_id] = self._waiting.get(session_id, 0) + size
            return future, True

    def _check_bytes(self, session_id: str, size: int) -> None:
        """Raise :class:`Busy` if a request does not fit beside those that wait; one alone always fits."""
        own, limit = self._waiting.get(session_id, 0), self._limits.pending_bytes
        if (own and own + size > limit // 2) or (
            own < self.waiting_bytes and self.waiting_bytes + size > limit
        ):
            raise Busy(
                f"requests of {self.waiting_bytes >> 20} MB wait here, {own >> 20} MB of this session; try again when "
                "some are done"
            )

    def _subtract_waiting(self, future: Future) -> None:
        """Subtract the bytes of an operation that is done, or dropped before."""
        left = self._waiting.get(future.session_id, 0) - future.size
        if left > 0:
            self._waiting[future.session_id] = left
        else:
            self._waiting.pop(future.session_id, None)

    def finish(self, future: Future, reply: Reply) -> None:
        """Set the result of a future, and wake its client."""
        with self._lock:
            if future.reply is not None or self._by_id.get(future.request_id) is not future:
                return
            future.reply = reply
            self._subtract_waiting(future)
            self._done[future.request_id] = future
            self._bytes += len(reply.body)
            self._drop_oldest()
        future.done.set()

    def wait(self, request_id: str, seconds: float) -> Reply | None:
        """Return the result of a request, or ``None`` if it takes longer; raise :class:`Gone` if it is unknown."""
        future = self._by_id.get(request_id)
        if future is None:
            raise Gone("this request is not known: its result was dropped, or the server was restarted")
        if not future.done.wait(seconds):
            return None
        with self._lock:
            if future.fetched_at is None and future.request_id in self._done:
                future.fetched_at = time.monotonic()
                self._fetched[request_id] = future
                while len(self._fetched) > self._limits.fetched:
                    self._drop(next(iter(self._fetched)))
        return future.reply

    def cancel(self, request_id: str) -> None:
        """Mark an operation that waits as not wanted any more."""
        future = self._by_id.get(request_id)
        if future is not None:
            future.cancelled = True

    def drop_session(self, session_id: str) -> None:
        """Drop all futures of a session that has ended."""
        with self._lock:
            for request_id, future in list(self._by_id.items()):
                if future.session_id == session_id:
                    future.cancelled = True
                    self._drop(request_id)

    def sweep(self) -> None:
        """Drop results that were fetched some time ago."""
        oldest = time.monotonic() - self._limits.fetched_s
        with self._lock:
            while self._fetched:
                request_id, future = next(iter(self._fetched.items()))
                if future.fetched_at is not None and future.fetched_at > oldest:
                    return
                self._drop(request_id)

    def _drop_oldest(self) -> None:
        """Drop results until their bytes are within the limit, those that were fetched first."""
        while self._bytes > self._limits.result_bytes and len(self._done) > 1:
            self._drop(next(iter(self._fetched or self._done)))

    def _drop(self, request_id: str) -> None:
        future = self._by_id.pop(request_id, None)
        self._fetched.pop(request_id, None)
        if self._done.pop(request_id, None) is not None and future is not None and future.reply is not None:
            self._bytes -= len(future.reply.body)
        if future is None:
            return
        if future.reply is None:
            self._subtract_waiting(future)
        future.done.set()  # a client that waits for it asks again, and gets status 410
