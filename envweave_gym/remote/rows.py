"""The rows of a remote vector that one server steps, and calls to many servers at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from envweave_gym.faults import EnvweaveError, Fault
from envweave_gym.remote.served import FAULTS, ServedEnvironment
from envweave_gym.remote.session import HANDSHAKE, RemoteSession, _answers, reply_of
from envweave_gym.wire.messages import Refused, Reply, Reset, Step, encode
from envweave_gym.wire.values import pack

_GRACE = 0.5
"""So many seconds at least a reply is looked for, which has had all the time that others were waited for."""

_ATTEMPTS = 4
Build = Callable[[int], Reset | Step] | None
"""The call with a number, or none for that which creates the session."""


class RowSession(RemoteSession):
    """A session whose call can be sent now and its reply be read later."""

    _under_way = (b"", 0, 0.0)
    _sent = False

    @property
    def created(self) -> bool:
        """Whether the server has made this session, as far as is known."""
        return self._committed >= 0

    def send(self, build: Build, patience: float = 0.0) -> None:
        """Send the next call as far as there is a way; :meth:`receive` sends it where there was none."""
        now = time.monotonic()
        deadline = now + self._deadline + patience
        number = self._committed + 1
        frame = self._create if build is None else encode(build(number))
        self._under_way, self._sent = (frame, number, deadline), False
        if os.getpid() != self._pid:
            return
        try:
            if self._transport is None:
                self._transport = self._connected(min(deadline, now + HANDSHAKE))
            self._transport.send(frame, deadline)
            self._sent = True
        except (OSError, EnvweaveError):
            self._hang_up()

    def receive(self) -> Reply:
        """The reply to what was sent, which is sent again where it was lost."""
        frame, number, deadline = self._under_way
        reply = self._arrived(number, deadline) if self._sent else None
        if reply is None:
            reply = self._exchange(frame, number, deadline)
        elif isinstance(reply, Refused):
            self._refused(reply)
        self._committed = number
        return reply

    def _arrived(self, number: int, deadline: float) -> Reply | None:
        now = time.monotonic()
        until = now + max((deadline - now) / _ATTEMPTS, _GRACE)
        try:
            while self._transport is not None:
                reply = reply_of(self._transport.receive(until), self.address.url)
                if _answers(reply, number):
                    return reply
        except (ConnectionError, TimeoutError):
            self._hang_up()
        return None

    def drop(self) -> None:
        """Hang up, so that a reply that is still to come is not taken for that to another call."""
        if os.getpid() == self._pid:
            self._hang_up()


def at_once(
    sessions: Sequence[RowSession], builds: Sequence[Build], patience: float = 0.0
) -> list[Reply | Exception]:
    """Send a call in every session, then wait for all replies; what one raises stands in its place."""
    try:
        for session, build in zip(sessions, builds, strict=True):
            session.send(build, patience)
        return [_received(session) for session in sessions]
    except BaseException:
        for session in sessions:
            session.drop()
        raise


def _received(session: RowSession) -> Reply | Exception:
    try:
        return session.receive()
    except Exception as error:  # noqa: BLE001 - it is raised once the replies of the others are read
        return error


class RowGroup(ServedEnvironment):
    """Some rows of a vector, and the server that steps them: when its session is lost all of them end."""

    live = False
    """Whether the session is there, with an episode in every row or one that has ended as usual."""
    broken: Fault | None = None
    """A loss that the next step has to tell."""
    shaky = False
    """Whether an episode was lost and none has come to its end since."""
    resumed = False
    """Whether the session is new, and some rows were not meant to be reset in it yet."""
    last: Any = None
    """The observations that were given last."""

    def __init__(self, rows: slice, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.rows, self.size = rows, rows.stop - rows.start
        self.numbers = range(rows.start, rows.stop)

    def session(self) -> RowSession:
        """The session there is, or else a new one, which its first call opens."""
        if not isinstance(self._session, RowSession):
            self._session = RowSession(self.address, self._create, self._call_deadline)
        return self._session

    def fresh_session(self) -> RowSession:
        """The session for a reset: another than one whose environments have crashed."""
        if self._crashed:
            self.close()
        return self.session()

    def lost(self, error: Exception) -> Fault:
        """All rows are lost: leave the session, and count the fault or raise ``error``."""
        self.live = False
        return super().lost(error)

    def _count(self, error: Exception) -> Fault:
        self.shaky = True
        return super()._count(error)

    def close(self) -> None:
        """Close the session."""
        super().close()
        self.live, self.broken = False, None


@dataclass
class RowReset:
    """A reset of rows of one group."""

    group: RowGroup
    seed: Any
    """What :func:`envweave_gym_server.rows.reset_rows` takes, packed."""
    options: dict[str, Any]
    anew: bool
    """Whether every row is reset, so that it can be in another session just as well."""

    def build(self, number: int) -> Reset:
        """The call with this number."""
        return Reset(number, self.seed, pack(self.options))

    def again(self, error: Exception, started: float) -> Reply | Fault:
        """After a loss: reset in another session, where that is possible and there is time left."""
        group = self.group
        if self.anew and time.monotonic() - started < group._reset_deadline:
            group._part(error)
            return group.reset(self.seed, self.options)
        return group.lost(error)


def reset_at_once(resets: Sequence[RowReset]) -> list[Any]:
    """Reset many groups: their replies, or the :class:`Fault` that was counted."""
    started, sessions = time.monotonic(), [one.group.fresh_session() for one in resets]
    patience = max((one.group._reset_deadline for one in resets), default=0.0)
    fresh = [session for session in sessions if not session.created]
    made = at_once(fresh, [None] * len(fresh), patience)
    results: dict[str, Any] = {
        session.id: error for session, error in zip(fresh, made, strict=True) if isinstance(error, Exception)
    }
    ready = [pair for pair in zip(sessions, resets, strict=True) if pair[0].id not in results]
    replies = at_once([session for session, _ in ready], [one.build for _, one in ready], patience)
    results |= {session.id: reply for (session, _), reply in zip(ready, replies, strict=True)}
    told = [results[session.id] for session in sessions]
    raise_refusal(told)
    return [
        one.again(result, started) if isinstance(result, Exception) else result
        for one, result in zip(resets, told, strict=True)
    ]


def raise_refusal(results: Sequence[Any]) -> None:
    """Raise what is among the results and no loss."""
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, FAULTS):
            raise result
