"""Sub-batches of a vector in Ray actors: their step may be sent long before its reply is asked for."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from envweave_gym.net.framed_socket import FramedSocket
from envweave_gym.remote import upkeep
from envweave_gym.remote.rows import RowGroup
from envweave_gym.remote.session import Build, RemoteSession
from envweave_gym.wire.messages import Reply
from envweave_gym.wire.values import ARRAY, _read_header, unpack

_LARGE = 1 << 16
_LONGEST_WAIT = 1.0
"""Seconds between two checks for overdue replies."""
_TURN = 0.005
"""Seconds of one wait for Ray, while others may answer over their sockets."""


def _seen(code: int, data: memoryview) -> Any:
    """The value of an extension; a large array is a view of the frame, which cannot be written to."""
    if code != ARRAY or len(data) < _LARGE:
        return unpack(code, data)
    dtype, shape, start, size = _read_header(data)
    if size != len(data) - start:
        return unpack(code, data)  # which says what is wrong
    return np.frombuffer(data[start:], dtype).reshape(shape)


class EarlySession(RemoteSession):
    """A session whose next call may be under way already when it is made."""

    _read = staticmethod(msgspec.msgpack.Decoder(Reply, ext_hook=_seen).decode)
    _is_early = False
    _reply_seen: Reply | Exception | None = None

    def send_early(self, build: Build) -> None:
        """Send the next call, which is the one that :meth:`send` will be asked to send."""
        super().send(build)
        self._is_early = True

    def send(self, build: Build, hope: float = math.inf) -> None:
        """Send the next call, unless it was sent early."""
        if not self._is_early:
            super().send(build, hope)

    def look(self) -> None:
        """Take what has come of what was sent early; where that is nothing, it is sent again."""
        if self._reply_seen is None:
            try:
                self._reply_seen = super().attempt()
            except Exception as error:  # noqa: BLE001 - the next attempt raises it
                self._reply_seen = error

    def attempt(self, grace: float = 0.0) -> Reply | None:
        """The reply to what was sent last, which is there where :attr:`is_answered`."""
        answered, self._reply_seen, self._is_early = self._reply_seen, None, False
        if isinstance(answered, Exception):
            raise answered
        return super().attempt(grace) if answered is None else answered

    @property
    def is_answered(self) -> bool:
        """Whether :meth:`look` has taken what :meth:`attempt` will give."""
        return self._reply_seen is not None

    @property
    def coming(self) -> Any:
        """A socket, or what ``ray.wait`` takes, to wait for the reply; ``None`` where that is of no use."""
        return getattr(self._transport, "next_reply", None) if time.monotonic() < self._call.until else None

    def drop(self) -> None:
        """Hang up, and forget what was sent early."""
        super().drop()
        self._is_early, self._reply_seen = False, None


class EarlyGroup(RowGroup):
    """Rows whose step may be sent before it is made."""

    acts: Any = None
    """While a step is under way: the actions of all rows of the vector, its own among them."""

    def session(self) -> EarlySession:
        """The session there is, or else a new one, which its first call opens."""
        if not isinstance(self._session, EarlySession):
            upkeep.join(self.address.url, self)
            self._session = EarlySession(self.address, self._create, self._call_deadline)
            self._closed = self.gone = False
        return self._session

    def begin(self, acts: Any, build: Build) -> None:
        """Send a step, where there is a session that can take it."""
        self.acts = acts
        if self.live:
            self.session().send_early(build)

    @property
    def is_answered(self) -> bool:
        """Whether what has come of its step is known; what is lost takes no step."""
        return not self.live or self.session().is_answered


def first_answered(groups: Sequence[EarlyGroup], rows: int) -> list[EarlyGroup]:
    """The groups whose steps are answered, as soon as they have ``rows`` rows together."""
    while True:
        unanswered = [group.session() for group in groups if not group.is_answered]
        come = _come(unanswered, 0.0)
        for session in unanswered:
            if session.coming in come:
                session.look()
        answered = [group for group in groups if group.is_answered]
        if sum(group.size for group in answered) >= rows:
            return answered
        _come([group.session() for group in groups if not group.is_answered], _LONGEST_WAIT)


def _come(sessions: Sequence[EarlySession], seconds: float) -> list[Any]:
    """The handles that became ready for a session, after ``seconds`` at the latest."""
    coming = {session.coming for session in sessions}
    if None in coming:  # somebody has to send it again
        seconds = 0.0
    sockets = [one for one in coming if isinstance(one, FramedSocket)]
    calls = [one for one in coming - {None} if not isinstance(one, FramedSocket)]
    until = time.monotonic() + seconds
    while True:
        come = _readable(sockets, 0.0 if calls else seconds) if sockets else []
        if calls:
            come += _come_back(calls, 0.0 if come else min(seconds, _TURN) if sockets else seconds)
        if come or time.monotonic() >= until:
            return [None, *come]


def _readable(sockets: Sequence[FramedSocket], seconds: float) -> list[Any]:
    """The sockets from which something can be read."""
    poll, known = select.poll(), {one.fileno(): one for one in sockets}
    for descriptor in known:
        poll.register(descriptor, select.POLLIN)
    ahead = [one for one in sockets if one.ahead]
    return ahead + [known[one] for one, _ in poll.poll(0 if ahead else seconds * 1000)]


def _come_back(calls: list[Any], seconds: float) -> list[Any]:
    """The calls that are done."""
    import ray

    return ray.wait(calls, num_returns=1 if seconds else len(calls), timeout=seconds)[0]
