"""State machine of a session at its client: it numbers calls, and sends them again or gives them up.

It does no I/O and reads no clock. Each input takes the time and returns the next action, which ``session.py``
carries out, and the simulation on a virtual clock. A frame is sent again, over another connection each time,
until its reply has come; the server does a call once, however often its frame arrives.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from envweave_gym.wire.messages import DONE_ALL_THE_SAME, NUMBERLESS, Answer, Refused, Reply

_WAITS = 4
"""The parts of a call's time after each of which a frame without a reply is sent again."""
_HANDSHAKE_S = 0.5
"""The time of the first handshake of a call; it doubles with each attempt, as a server that has just died may
leave its connections to the next one unanswered."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 1.0


class Connect(NamedTuple):
    """Connect, then call :meth:`SessionCore.connected` or :meth:`SessionCore.unsent`."""

    until: float


class Send(NamedTuple):
    """Send the call's frame, then receive; call :meth:`SessionCore.unsent` if that fails."""

    until: float


class Receive(NamedTuple):
    """Receive a reply, then call :meth:`SessionCore.received` or :meth:`SessionCore.unanswered`."""

    until: float


class Pause(NamedTuple):
    """Sleep, then call :meth:`SessionCore.paused`."""

    seconds: float
    unreached_s: float = 0.0
    """How long the server has not been reached."""
    left_s: float = 0.0
    """How long it is still tried."""


class Deliver(NamedTuple):
    """Return this reply to the caller."""

    reply: Reply


class Refuse(NamedTuple):
    """Raise this refusal."""

    reply: Refused
    hang_up: bool
    """Whether a reply to the same call is still to come, which must not be taken for that to another."""


class GiveUp(NamedTuple):
    """Raise this loss."""

    error: Exception


class Call(msgspec.Struct, gc=False):
    """A call or a question that is under way."""

    frame: bytes
    number: int
    opening: bytes
    """The create that goes before it; a refusal of that is one of both."""
    deadline: float
    wait_s: float
    """After this time without a reply the frame is sent again."""
    give_up_at: float
    """Until when a server that is not there may come back; the time on a connection puts it off."""
    tried_at: float
    """When it was sent last, or was to be sent."""
    until: float = 0.0
    """When the reply is overdue."""
    pause_s: float = 0.0
    handshake_s: float = _HANDSHAKE_S
    unreached_since: float = math.inf
    was_refused: bool = False
    """Whether a connection was refused, from when on its deadline counts."""
    reason: Exception | None = None
    """The last loss that says more than that the deadline was over."""


class SessionCore:
    """One session: made by its first call, which the create is sent along with."""

    def __init__(self, create: bytes, deadline_s: float) -> None:
        """``create`` is the frame that makes the session, ``deadline_s`` the time of each call."""
        self._create, self._deadline_s = create, deadline_s
        self.committed = -1
        """The number of the last call that was done; -1 before the create."""
        self.may_exist = False
        """Whether the server may have this session: its create was sent."""
        self.since = math.inf
        """Since when."""
        self.is_connected = False
        self.call = Call(b"", NUMBERLESS, b"", 0.0, 0.0, 0.0, 0.0)
        self._questions = NUMBERLESS

    def next_call(self) -> int:
        """Return the number of the next reset or step."""
        return max(self.committed, 0) + 1

    def next_question(self) -> int:
        """Return a number for a question, which no other has."""
        self._questions -= 1
        return self._questions

    def forget(self) -> None:
        """Forget the session: the next call makes another."""
        self.committed, self.may_exist, self.is_connected = -1, False, False

    # Inputs

    def begin(
        self,
        frame: bytes,
        number: int,
        now: float,
        seconds: float | None = None,
        give_up_s: float = math.inf,
        waits: int | None = None,
    ) -> Connect | Send:
        """Begin a call or, with a negative number, a question.

        A server that is not there is given up after ``give_up_s``, but for a second attempt.
        """
        seconds = self._deadline_s if seconds is None else seconds
        opening = self._create if self.committed < 0 and number > 0 else b""
        give_up_at = now + give_up_s
        self.call = call = Call(
            frame, number, opening, now + seconds, seconds / (waits or _WAITS), give_up_at, now
        )
        return self._send(now) if self.is_connected else Connect(min(call.deadline, now + call.handshake_s))

    def connected(self, now: float) -> Send:
        """A connection was made."""
        self.is_connected, self.call.unreached_since = True, math.inf
        return self._send(now)

    def _send(self, now: float) -> Send:
        if self.committed < 0 and not self.may_exist:
            self.may_exist, self.since = True, now
        call, until = self.call, now + self.call.wait_s
        call.until = until if until < call.deadline else call.deadline
        return Send(call.until)

    def received(self, reply: Reply) -> Deliver | Refuse | Receive:
        """A reply has come: to this call, or a late copy of another."""
        call = self.call
        is_refusal = isinstance(reply, Refused)
        number = reply.number if is_refusal or isinstance(reply, Answer) else reply.call
        is_of_create = is_refusal and number < 1 and bool(call.opening)
        if number != call.number and not is_of_create and not (is_refusal and number == NUMBERLESS):
            return Receive(call.until)
        if not is_refusal:
            self.committed = max(self.committed, number)
            return Deliver(reply)
        if number == 0:
            self.may_exist = False
        elif number > 0:
            self.committed = number if reply.kind in DONE_ALL_THE_SAME else max(self.committed, 0)
        return Refuse(reply, is_of_create)

    def unanswered(self, error: Exception, now: float) -> Pause | GiveUp:
        """No reply has come: in time, or before the connection was lost."""
        action = self._again(error, now)
        self.call.give_up_at += now - self.call.tried_at
        return action

    def unsent(self, error: Exception, now: float) -> Pause | GiveUp:
        """No connection was made, or it was lost before the frame was sent.

        A server that goes away late in a long call has as much time to come back as any: the deadline counts
        from the first refused connection.
        """
        call = self.call
        call.unreached_since = min(call.unreached_since, now)
        if isinstance(error, ConnectionRefusedError) and not call.was_refused:
            call.was_refused, call.deadline = True, now + self._deadline_s
        return self._again(error, now)

    def still_starting(self, error: Exception, now: float, waited_s: float) -> Pause | GiveUp:
        """The server is being started, which was waited for; that is no attempt to reach it."""
        self.call.handshake_s /= 2
        self.call.give_up_at += waited_s
        return self._again(error, now)

    def _again(self, error: Exception, now: float) -> Pause | GiveUp:
        self.is_connected, call = False, self.call
        if not isinstance(error, TimeoutError):
            call.reason = error
        elif now < call.deadline:
            call.reason = None  # an attempt that had its whole time says more than the ones before it
        if now + call.pause_s > call.deadline or call.tried_at > call.give_up_at:
            return GiveUp(call.reason or error)
        pause_s = min(call.pause_s, max(call.give_up_at - now, 0.0))
        left_s = min(call.deadline, call.give_up_at) - now
        return Pause(pause_s, max(now - call.unreached_since, 0.0), left_s)

    def paused(self, now: float) -> Connect:
        """The pause is over."""
        call = self.call
        call.pause_s = min(1.5 * call.pause_s + _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        call.handshake_s = min(2 * call.handshake_s, max(call.give_up_at - now, _HANDSHAKE_S))
        call.tried_at = now
        return Connect(min(call.deadline, now + call.handshake_s))


Action = Connect | Send | Receive | Pause | GiveUp
"""The next action for who drives the state machine, while there is no reply."""
