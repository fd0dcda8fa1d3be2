"""Session on the server: lock, environment and clients around the state machine ``SessionCore``."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from envweave_gym.wire.messages import (
    Answer,
    Ask,
    Began,
    Call,
    Close,
    Create,
    Refused,
    Reset,
    encode,
    read_reply,
)
from envweave_gym_server.core.errors import ClientLeft, NoSession
from envweave_gym_server.core.metrics import Metrics
from envweave_gym_server.isolation.hosts import Host
from envweave_gym_server.sessions.event_stream_log import EventStreamLog
from envweave_gym_server.sessions.session_protocol import CREATED, SessionCore, Verdict

CLIENT_CHECK_S = 0.2
"""Time between two checks whether a client that waits for a busy session is still connected."""
_REFUSED = encode(Refused(0, "", ""))[0]
"""First byte of every error reply and of no other reply: a message is an array, and this its length."""
_log = logging.getLogger(__name__)

Left = Callable[[], bool]
"""Function that returns whether a client has disconnected."""


def stays() -> bool:
    """Return ``False``: the client is in this process, and does not disconnect."""
    return False


_NONE: Mapping[int, int] = MappingProxyType({})


class Snapshot(NamedTuple):
    """The last executed call of a session: one value, replaced as a whole, so that a view never mixes two calls."""

    call: int
    """Number of the call; 0 before the first reset."""
    reply: bytes
    """Frame of its reply."""
    whole_reply: bytes
    """Frame of the last reply that covers every row of a vector, as that to a reset of some rows covers only those."""
    began: Mapping[int, int] = _NONE
    """The ``seq`` of the open request of each row that was reset since ``whole_reply``."""

    def after(self, message: Reset, frame: bytes) -> Snapshot:
        """Return the snapshot after a reset, whose reply is in ``frame``."""
        whole = Snapshot(message.call, frame, frame)
        options: Any = message.options
        if not isinstance(options, dict) or options.get("reset_mask") is None:
            return whole
        reply = read_reply(frame)
        if not isinstance(reply, Began) or "_stream" not in reply.info:  # it has crashed, or is no vector
            return whole
        rows, seq = reply.info["_stream"].nonzero()[0], reply.info["seq"]
        began = {**self.began, **dict(zip(rows.tolist(), seq[rows].tolist(), strict=True))}
        return Snapshot(message.call, frame, self.whole_reply, began)


class Session:
    """One environment, and the clients that use it; executes one call at a time, in the calling thread.

    Further calls wait in turn, as long as their clients are connected.
    """

    def __init__(
        self,
        session_id: str,
        create: Create,
        frame: bytes,
        host: Host,
        metrics: Metrics | None = None,
        log_size: int = 0,
    ) -> None:
        self.create, self.id, self.env_id, self.api = create, session_id, create.env_id, create.api
        self.core = SessionCore(session_id, frame, time.monotonic())
        self.replies = EventStreamLog(log_size)
        self.notes: dict[str, Any] = {}
        """Values that protocols store with a session."""
        self._host = host
        self._metrics = metrics or Metrics()
        self._tally = self._metrics.begin()
        self._lock = threading.Lock()
        self._attached: list[Left] = []
        self._caller: Left = stays
        """Tells whether the client of the running call has disconnected."""
        self._waiting: list[Left] = []
        self.snapshot = Snapshot(0, CREATED, CREATED)

    def call(self, message: Call, frame: bytes, left: Left = stays) -> bytes:
        """Return the reply frame to a message; ``frame`` is its encoding.

        If another call is running, this waits. If ``left()`` says meanwhile that the client has disconnected, the call
        is not executed.
        """
        if not self._lock.acquire(blocking=False):
            self._wait_in_turn(left)
        self._caller = left
        try:
            return self._call(message, frame)
        finally:
            self._lock.release()

    def call_next(self, build: Callable[[int], tuple[Call, bytes]], left: Left = stays) -> bytes:
        """Execute the next call, whichever number that is, and return the reply frame.

        ``build`` gets the number, and returns the message and its frame. ``left`` returns whether the client has
        disconnected.
        """
        self._wait_in_turn(left)
        self._caller = left
        try:
            return self._call(*build(self.core.committed + 1))
        finally:
            self._lock.release()

    def peek(self, message: Ask, frame: bytes, left: Left = stays) -> tuple[bytes, Snapshot]:
        """Return the reply frame to a question of a listener and the snapshot then, without renewing the lease.

        ``left`` returns whether the listener has disconnected.
        """
        self._wait(left)
        try:
            if self.core.closed:
                raise self._gone()
            return self._host.answer(message, frame), self.snapshot
        finally:
            self._lock.release()

    def _wait_in_turn(self, left: Left) -> None:
        """Acquire the lock, for a client that keeps the session while it waits."""
        self._waiting.append(left)
        try:
            self._wait(left)
        finally:
            self._waiting.remove(left)

    def _wait(self, left: Left) -> None:
        """Acquire the lock; raise ``ClientLeft`` if ``left()`` says first that the client has disconnected."""
        while not self._lock.acquire(timeout=CLIENT_CHECK_S):
            if left():
                raise ClientLeft(f"the client that waited for session {self.id} has left")

    def _call(self, message: Call, frame: bytes) -> bytes:
        core = self.core
        if core.closed:
            raise self._gone()
        started = time.monotonic()
        verdict, reply = core.receive(message, frame)
        if verdict is not Verdict.DO:
            return self._answer(message, frame, verdict, reply)
        call: Any = message  # a reset or a step, which only the core's verdict tells
        reply, done = self._host.do(call, frame)  # may take as long as it likes: only clients have deadlines
        now = time.monotonic()
        if not done:
            core.used = now
            self._tally.calls[type(message), "refused"] += 1
            return reply
        core.commit(frame, reply, now)
        is_reset = type(message) is Reset
        self.snapshot = self.snapshot.after(call, reply) if is_reset else Snapshot(call.call, reply, reply)
        self._tally.took(type(message), now - started)
        self.replies.add(call.call, reply)
        if reply[0] == _REFUSED:
            self._tally.calls[type(message), "crashed"] += 1
            _log.warning("environment crashed", extra={"session": self.id, "env": self.env_id})
        return reply

    def _answer(self, message: Call, frame: bytes, verdict: Verdict, reply: bytes) -> bytes:
        """Return the reply to a message that is no new call; ``reply`` is that of the core, if it has one."""
        started = time.monotonic()
        if isinstance(message, Ask):
            reply = self._host.answer(message, frame)
            self._tally.took(Ask, time.monotonic() - started)
        elif isinstance(message, Close):
            self._tally.calls[Close, "done"] += 1
            self._shut("closed")
            reply = encode(Answer(message.number, None))
        else:
            self._tally.calls[type(message), verdict.value] += 1
        self.core.used = time.monotonic()
        return reply

    def _gone(self) -> NoSession:
        return NoSession(f"session {self.id} is closed; create another")

    def attach(self, left: Left) -> None:
        """Stop the lease until :meth:`detach`, for a connection whose client disconnects when ``left()`` is true."""
        self._attached.append(left)

    def detach(self, left: Left) -> None:
        """Let the lease run again for a connection that has ended; ``left`` is the function that :meth:`attach` got."""
        self._attached.remove(left)
        self.core.used = time.monotonic()

    @property
    def attached(self) -> int:
        """Number of connections whose clients have not disconnected."""
        return sum(not left() for left in self._attached.copy())

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    @property
    def wanted(self) -> bool:
        """Whether the session is in use: a client is connected or waits, or a call is running that cannot be killed."""
        if self.attached or any(not left() for left in self._waiting.copy()):
            return True
        return self.busy and not (self._host.may_be_killed and self._caller())

    def idle_s(self) -> float:
        """Return the seconds since the last use; 0 while somebody uses the session."""
        return self.core.idle_s(time.monotonic(), wanted=self.wanted)

    def close(self, why: str = "closed", lease_s: float = math.inf) -> None:
        """Close the environment after its running call.

        If that call can be killed, it is, once nobody has waited for it for ``lease_s`` seconds.
        """
        while not self._lock.acquire(timeout=CLIENT_CHECK_S):
            if self.idle_s() > lease_s:
                self._host.kill()
        try:
            self._shut(why)
        finally:
            self._lock.release()

    def _shut(self, why: str) -> None:
        if self.core.closed:
            return
        self.core.closed = True
        self._metrics.end(self._tally, why)
        about = {"session": self.id, "env": self.env_id, "why": why, "calls": self.core.committed}
        _log.info("session ended", extra=about)
        try:
            self._host.close()
        except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also here
            _log.warning("environment did not close", extra={**about, "error": type(error).__name__})
        finally:
            self.replies.close()
