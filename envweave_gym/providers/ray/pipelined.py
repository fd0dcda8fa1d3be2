"""Pipelining of steps: a call is sent first, and its reply is received later, when it has arrived."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from envweave_gym.net.framed_socket import FramedSocket
from envweave_gym.remote.session import RemoteSession
from envweave_gym.remote.shard_calls import Shard
from envweave_gym.wire.messages import Reply, Reset, Step
from envweave_gym.wire.values import ARRAY, array_header, unpack

_LARGE_ARRAY_BYTES = 1 << 16
_OVERDUE_CHECK_S = 1.0
"""Time between two checks for overdue replies."""
_RAY_WAIT_S = 0.005
"""Longest wait for results of Ray while other replies may come over sockets."""


def _decode_extension(code: int, data: memoryview) -> Any:
    """Decode a msgpack extension; a large array becomes a read-only view of the frame, without a copy."""
    if code != ARRAY or len(data) < _LARGE_ARRAY_BYTES:
        return unpack(code, data)
    dtype, shape, start, size = array_header(bytes(data[: 2 + data[0] + 4 * data[1]]))
    if size != len(data) - start:
        return unpack(code, data)  # raises the error
    return np.frombuffer(data[start:], dtype).reshape(shape)


class PipelinedSession(RemoteSession):
    """Session whose next call can be sent before the method that waits for the reply is called."""

    _read = staticmethod(msgspec.msgpack.Decoder(Reply, ext_hook=_decode_extension).decode)
    _is_sent_ahead = False
    _polled: Reply | Exception | None = None

    def send_ahead(self, message: Step) -> None:
        """Send the next call now; a later :meth:`send` or :meth:`call` with the same message does not send it again."""
        super().send(message)
        self._is_sent_ahead = True

    def send(self, message: Reset | Step, give_up_s: float = math.inf) -> None:
        """Send a call, unless :meth:`send_ahead` has sent it already."""
        if isinstance(message, Reset):  # a step that was sent ahead and never received, because of Ctrl-C
            self._is_sent_ahead, self._polled = False, None
        if not self._is_sent_ahead:
            super().send(message, give_up_s)

    def call(self, message: Reset | Step, give_up_s: float = math.inf) -> Reply:
        """Send a call, unless :meth:`send_ahead` has sent it already, and return the reply."""
        self.send(message, give_up_s)
        return self.receive()

    def poll(self) -> None:
        """Receive the reply to the call that was sent ahead, and keep it, or its error, for :meth:`attempt`."""
        if self._polled is None:
            try:
                self._polled = super().attempt()
            except Exception as error:  # noqa: BLE001 - attempt raises it
                self._polled = error

    def attempt(self, grace_s: float = 0.0) -> Reply | None:
        """Return the reply or raise the error that :meth:`poll` has stored, else try to receive the reply."""
        polled, self._polled, self._is_sent_ahead = self._polled, None, False
        if isinstance(polled, Exception):
            raise polled
        return super().attempt(grace_s) if polled is None else polled

    @property
    def is_answered(self) -> bool:
        """Whether :meth:`poll` has kept a reply or an error."""
        return self._polled is not None

    @property
    def handle(self) -> Any:
        """Socket or Ray reference to wait for; ``None`` if the call is overdue or has no connection."""
        if time.monotonic() >= self.overdue_at:
            return None
        transport: Any = self._transport
        return transport if isinstance(transport, FramedSocket) else getattr(transport, "next_reply", None)

    def drop(self) -> None:
        """Disconnect, and forget the call that was sent ahead."""
        super().drop()
        self._is_sent_ahead, self._polled = False, None


class PipelinedShard(Shard):
    """Rows of a vector on one server, whose step can be sent before its result is waited for."""

    _session_type = PipelinedSession
    acts: Any = None
    """Actions of all rows of the vector while a step is under way, else ``None``."""

    def session(self) -> PipelinedSession:
        """Return the open session, or a new one; the server creates it at its first call."""
        return cast("PipelinedSession", super().session())

    def begin(self, acts: Any, message: Step) -> None:
        """Send a step without waiting for the reply; nothing is sent if the episodes of these rows are lost.

        ``acts`` are the actions of all rows of the vector, and ``message`` is the packed step of these rows.
        """
        self.acts = acts
        if self.live:
            self.session().send_ahead(message)

    @property
    def is_answered(self) -> bool:
        """Whether the reply to the step has arrived; lost rows send no step and count as answered."""
        return not self.live or self.session().is_answered


def first_answered(shards: Sequence[PipelinedShard], rows: int) -> list[PipelinedShard]:
    """Wait until shards with at least ``rows`` rows together have their replies, and return these shards."""
    while True:
        unanswered = [shard.session() for shard in shards if not shard.is_answered]
        ready = _ready(unanswered, 0.0)
        for session in unanswered:
            if session.handle in ready:
                session.poll()
        answered = [shard for shard in shards if shard.is_answered]
        if sum(shard.size for shard in answered) >= rows:
            return answered
        _ready([shard.session() for shard in shards if not shard.is_answered], _OVERDUE_CHECK_S)


def _ready(sessions: Sequence[PipelinedSession], seconds: float) -> list[Any]:
    """Return the handles that become ready within ``seconds``; ``None`` stands for sessions without a handle."""
    handles = {session.handle for session in sessions}
    if None in handles:  # an overdue call must be sent again, so do not wait
        seconds = 0.0
    sockets = [one for one in handles if isinstance(one, FramedSocket)]
    calls = [one for one in handles - {None} if not isinstance(one, FramedSocket)]
    until = time.monotonic() + seconds
    while True:
        # Sockets and Ray cannot be waited for together, so with both kinds they take turns.
        ready = _readable(sockets, 0.0 if calls else seconds) if sockets else []
        if calls:
            ready += _finished(calls, 0.0 if ready else min(seconds, _RAY_WAIT_S) if sockets else seconds)
        if ready or time.monotonic() >= until:
            return [None, *ready]


def _readable(sockets: Sequence[FramedSocket], seconds: float) -> list[Any]:
    """Return the sockets with data to read; wait for at most ``seconds``."""
    poll, known = select.poll(), {one.fileno(): one for one in sockets}
    for descriptor in known:
        poll.register(descriptor, select.POLLIN)
    ahead = [one for one in sockets if one.ahead]
    return ahead + [known[one] for one, _ in poll.poll(0 if ahead else seconds * 1000)]


def _finished(calls: list[Any], seconds: float) -> list[Any]:
    """Return the finished calls of Ray; wait for at most ``seconds``."""
    import ray

    return ray.wait(calls, num_returns=1 if seconds else len(calls), timeout=seconds)[0]
