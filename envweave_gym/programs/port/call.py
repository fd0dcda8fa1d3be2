"""A completion call of a program, with its attempts: the program may hang up and ask again before it has the answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.dialect import Dialect
from envweave_gym.programs.dialects.routes import json_bytes
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.port.http_requests import chunk, chunked_head, response
from envweave_gym.programs.reply import Reply, assistant_message

if TYPE_CHECKING:
    from envweave_gym.programs.port.connection import Connection

HEAD_DELAY_S = 20.0
"""Time for which the head of a response is held back: until then a call may still be refused."""
KEEP_ALIVE_S = 15.0
"""Time between two pieces of a slow answer; gemini-cli waits for 60 s, the others for 300 s and more."""
_SLOW_S = 1.0
"""An answer that took longer may have crossed with the program's timeout."""
_CHECKED_S = 0.05
"""Before an answer that took longer is sent, the port checks whether its program has hung up."""
_PATIENCE_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")
Remember = Callable[[str, tuple[Message, ...], int], None]
"""Gets a response's ID, the chat after it, and about how many bytes it has added."""


class Call:
    """A completion call that waits for its reply; what the program sends again meanwhile joins it."""

    def __init__(
        self, request: ModelRequest, number: int, dialect: Dialect, connection: Connection, remember: Remember
    ) -> None:
        self.request, self.number = request, number
        """``number`` is part of IDs in the reply, and counts the calls of the port unless the owner sets another."""
        self._dialect, self._remember = dialect, remember
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        """The connection that waits for the answer."""
        self._delivered_to: Connection | None = None
        self._reply: Reply | None = None
        self._is_refused = False
        self.is_delivered = False
        """Whether the program has its answer."""
        self._began = time.monotonic()
        self._latency_s = 0.0
        """How long the answer that was delivered last had taken."""
        # Half of the time after which the program has said that it hangs up.
        self._longest_pause_s = _patience_s(request.headers) / 2
        self._keep_alives = 0
        self._due: float | None = None
        self.attempts = 0
        """How often the program has sent the request."""
        self._attach(connection)

    @property
    def prefix(self) -> str:
        """The first part of the path, before ``/v1``."""
        return self.request.prefix

    @property
    def is_gone(self) -> bool:
        """Whether nobody waits for the reply: the program has hung up, or was answered."""
        return self._connection is None

    @property
    def is_settled(self) -> bool:
        """Whether the program has been answered or refused, and will hardly ask again."""
        return self.is_delivered or self._is_refused

    @property
    def is_open(self) -> bool:
        """Whether the call has no reply yet."""
        return self._reply is None and not self._is_refused

    def check(self, reply: Reply) -> None:
        """Raise ``InvalidAction`` for a reply that the program's dialect cannot carry."""
        self._dialect.check(reply)

    def answer(self, reply: Reply) -> bool:
        """Send the reply; return whether the program was there to take it. If it was not, its next attempt gets it.

        A reply that raises an exception leaves the call open.
        """
        self.check(reply)
        with self._lock:
            if not self.is_open:
                return False
            data = self._rendered(reply)
            name = self._dialect.response_id(self.request, self.number)
            if name is not None and self.request.sampling.get("store") is not False:
                self._remember(name, self._chat_after(reply), len(self.request.body) + len(data))
            self._reply = reply
            return self._deliver(data)

    def _chat_after(self, reply: Reply) -> tuple[Message, ...]:
        before = self.request.messages[self.request.has_instructions :]
        return (*before, msgspec.convert(assistant_message(reply, self.number), Message))

    def refuse(self, text: str, status: int = 400) -> bool:
        """Send an error that is not worth another try; return whether the program was there to take it.

        An answer that has begun cannot become an error: then the connection is closed.
        """
        body = json_bytes(self._dialect.error_body(status, text))
        with self._lock:
            if not self.is_open:
                return False
            connection, self._connection = self._connection, None
            self._is_refused = True
            if connection is None:
                return False
            data = b"" if self._keep_alives else response(status, "application/json", body, closes=True)
            return connection.finish(self, data, close=True) and not self._keep_alives

    def drop(self) -> None:
        """Close the connection without an answer, as the episode is over; no later attempt joins the call."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._is_refused = True
        if connection is not None:
            connection.finish(self, b"", close=True)

    def _rendered(self, reply: Reply) -> bytes:
        request, dialect = self.request, self._dialect
        if request.is_stream:
            body = dialect.reply_events(request, reply, self.number, self._keep_alives)
        else:
            body = json_bytes(dialect.reply_body(request, reply, self.number))
        kind = dialect.content_type(request)
        return chunk(body, is_last=True) if self._keep_alives else response(200, kind, body)

    def _deliver(self, data: bytes) -> bool:
        connection, self._connection = self._connection, None
        self._delivered_to = connection
        self._latency_s = time.monotonic() - self._began
        self.is_delivered = connection is not None and connection.finish(
            self, data, is_slow=self._latency_s > _CHECKED_S
        )
        return self.is_delivered

    # Attempts

    @property
    def is_lost(self) -> bool:
        """Whether the answer has not arrived, or not as a whole, and the program has hung up."""
        # The lock lets a thread that sends the answer finish: an equal request may come before it has noted that.
        with self._lock:
            return self._is_lost()

    def _is_lost(self) -> bool:
        has_ended = self._connection is None or self._connection.has_ended()
        return has_ended and not self._is_refused and not self.is_delivered

    def attach(self, connection: Connection, *, if_delivered: bool = False) -> bool:
        """Let the answer go to another connection if it is lost, or was delivered; return whether that is so."""
        with self._lock:
            if not (self._is_lost() or (if_delivered and self.is_delivered and not self._is_refused)):
                return False
            self._attach(connection)
            return True

    def _attach(self, connection: Connection) -> None:
        self._connection, connection.call = connection, self
        self.is_delivered = False
        self._keep_alives, self._due = 0, None
        self._began = time.monotonic()
        self.attempts += 1

    def resume(self) -> None:
        """Send the answer to the newest attempt, if there is one already."""
        with self._lock:
            if self._reply is not None:
                self._deliver(self._rendered(self._reply))

    def disconnected(self, connection: Connection) -> None:
        """Note that a connection has ended; another one may already have taken its place."""
        with self._lock:
            if self._connection is connection:
                self._connection = None

    def was_reset(self, connection: Connection) -> None:
        """Note that the program has closed a connection without reading all of the answer.

        That counts for slow answers only: a program may well leave the end of a stream unread. An answer that went to
        another connection since is not meant.
        """
        with self._lock:
            if connection is self._delivered_to and self._latency_s > _SLOW_S:
                self.is_delivered = False

    def keep_alive(self, now: float, head_delay_s: float, keep_alive_s: float) -> None:
        """Send a piece of a slow answer if it is time; a thread that sends the answer is not waited for."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            connection = self._connection
            due = self._due or self._began + min(head_delay_s, self._longest_pause_s)
            if connection is None or not self.is_open or now < due:
                return
            piece = chunk(self._dialect.keep_alive(self.request, self.number, self._keep_alives))
            if not self._keep_alives:
                piece = chunked_head(self._dialect.content_type(self.request)) + piece
            self._keep_alives, self._due = (
                self._keep_alives + 1,
                now + min(keep_alive_s, self._longest_pause_s),
            )
            connection.send_at_once(piece)
        finally:
            self._lock.release()


Receive = Callable[[Call], Any]


def _patience_s(headers: Mapping[str, str]) -> float:
    """Return the time for which a program waits for data, if it says so."""
    given = [math.inf]
    for name in _PATIENCE_HEADERS:
        if name in headers:
            with suppress(ValueError):
                given.append(float(headers[name]))
    return min(one for one in given if one > 0)
