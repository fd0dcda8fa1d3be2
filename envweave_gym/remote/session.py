"""A session on a server, from the client's side: numbered calls, asked again until they are answered."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from envweave_gym.faults import SessionLost
from envweave_gym.remote.address import Address
from envweave_gym.remote.errors import raise_refused
from envweave_gym.remote.transport import HttpTransport, Transport, WebSocketBlocked, WebSocketTransport
from envweave_gym.wire.messages import (
    DONE_ALL_THE_SAME,
    Answer,
    Ask,
    Close,
    Create,
    Refused,
    Reply,
    Reset,
    Step,
    encode,
    read_reply,
)
from envweave_gym.wire.values import pack

_CLOSE_DEADLINE = 5.0
_ATTEMPTS = 4
HANDSHAKE = 0.5
"""So many seconds the first handshake may take, and each further one twice as many: a server that has just
died may leave its connections to the next one unanswered."""
_log = logging.getLogger(__name__)


class RemoteSession:
    """One session: made by the first reset, gone after :meth:`close`, a loss, or a fork."""

    def __init__(self, address: Address, create: Create, deadline: float) -> None:
        self._transport: Transport | None = None
        self.address, self.id = address, uuid.uuid4().hex
        self._create = encode(create)
        self._deadline = deadline
        self._committed = -1
        self._asked = -1
        self._pid = os.getpid()

    def reset(self, seed: Any, options: Any, *, patience: float = 0.0) -> Any:
        """Start an episode; a new session is created with it."""
        deadline = time.monotonic() + self._deadline + patience
        if self._committed < 0:
            frame = encode(Reset(1, seed, pack(options)))
            reply = self._exchange(frame, 1, deadline, opening=self._create)
            self._committed = 1
            return reply
        return self._do(lambda number: Reset(number, seed, pack(options)), deadline)

    def step(self, action: Any) -> Any:
        """Act."""
        return self._do(lambda number: Step(number, action), time.monotonic() + self._deadline)

    def ask(self, question: str, argument: Any = None) -> Any:
        """The answer to a question."""
        deadline = time.monotonic() + self._deadline
        self._make_sure(deadline)
        self._asked -= 1
        message = Ask(self._asked, question, pack(argument))
        reply = self._exchange(encode(message), self._asked, deadline)
        return reply.value if isinstance(reply, Answer) else None

    def _make_sure(self, deadline: float) -> None:
        """Create the session unless it is there."""
        if self._committed < 0:
            self._exchange(self._create, 0, deadline)
            self._committed = 0

    def _do(self, message: Callable[[int], Reset | Step], deadline: float) -> Reply:
        number = self._committed + 1
        reply = self._exchange(encode(message(number)), number, deadline)
        self._committed = number
        return reply

    def _exchange(self, frame: bytes, number: int, deadline: float, opening: bytes = b"") -> Reply:
        """Send a frame until its reply is there: the server does it once, however often it comes.

        A reply may be lost without a word, so after a part of the time the frame is sent again over another
        connection.
        """
        if os.getpid() != self._pid:
            self._transport = None
            raise SessionLost(f"{self.address.url}: the session belongs to the process that opened it")
        pause, handshake, patience = 0.0, HANDSHAKE, (deadline - time.monotonic()) / _ATTEMPTS
        while True:
            try:
                if self._transport is None:
                    self._transport = self._connected(min(deadline, time.monotonic() + handshake))
                reply = self._once(frame, number, min(deadline, time.monotonic() + patience), opening)
                break
            except (ConnectionError, TimeoutError):
                handshake *= 2
                self._hang_up()
                if time.monotonic() + pause > deadline:
                    raise
            except BaseException:
                self._hang_up()  # a reply that is still to come must not be taken for that to another call
                raise
            time.sleep(pause)
            pause = min(1.5 * pause + 0.002, 1.0)
        if isinstance(reply, Refused):
            self._refused(reply)
        return reply

    def _refused(self, reply: Refused) -> None:
        if reply.kind in DONE_ALL_THE_SAME and reply.number > 0:
            self._committed = reply.number
        raise_refused(reply, self.address.url)

    def _once(self, frame: bytes, number: int, deadline: float, opening: bytes = b"") -> Reply:
        """Send a frame and wait for its reply; ``opening`` goes before it, and its refusal is one of both."""
        transport = self._transport
        if transport is None:
            raise ConnectionError(f"{self.address.url} is not connected")
        if opening:
            transport.send(opening, deadline)
            if not transport.pipelines:
                reply = reply_of(transport.receive(deadline), self.address.url)
                if isinstance(reply, Refused):
                    return reply
        transport.send(frame, deadline)
        while True:
            reply = reply_of(transport.receive(deadline), self.address.url)
            if _answers(reply, number):
                return reply
            if opening and isinstance(reply, Refused) and reply.number == 0:
                self._hang_up()  # the refusal of the second frame is still to come
                return reply

    def _connected(self, deadline: float) -> Transport:
        self.address.ensure()
        try:
            return WebSocketTransport(self.address, self.id, deadline)
        except WebSocketBlocked:
            return HttpTransport(self.address, self.id)

    def _hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def close(self) -> None:
        """Close the session, as far as the server can be reached."""
        if os.getpid() == self._pid and self._committed >= 0 and self._transport is not None:
            self._asked -= 1
            deadline = time.monotonic() + min(self._deadline, _CLOSE_DEADLINE)
            try:
                self._once(encode(Close(self._asked)), self._asked, deadline)
            except (OSError, SessionLost) as error:
                _log.debug("session %s of %s was not closed: %s", self.id, self.address.url, error)
        self.abandon()

    def abandon(self) -> None:
        """Leave the session to its lease."""
        if os.getpid() == self._pid:
            self._hang_up()
        self._committed = -1

    def __del__(self) -> None:
        self._hang_up()


def reply_of(frame: bytes, url: str) -> Reply:
    """The reply in a frame; what is none has come from something else on the way, and counts as lost."""
    try:
        return read_reply(frame)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"{url}: what came back is no reply of a server: {error}") from None


def _answers(reply: Reply, number: int) -> bool:
    """Whether this is the reply to that call, and no late copy of another."""
    given = reply.number if isinstance(reply, Answer | Refused) else reply.call
    return given == number or (isinstance(reply, Refused) and given == -1)
