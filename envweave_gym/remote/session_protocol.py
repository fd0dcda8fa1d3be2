"""State machine of a session on the client, without I/O: numbers calls, sends them again or gives them up.

It reads no clock. Each input returns the next :class:`Operation`, which a loop carries out: ``session.py``, or a
simulation on a virtual clock. A frame is sent again, over a new connection each time, until its reply arrives. The
server executes a call once, however often the frame arrives.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec

from envweave_gym.wire.messages import DONE_ALL_THE_SAME, NUMBERLESS, Answer, Refused, Reply

_WAITS = 4
"""Number of equal parts of a call's time limit; after each part without a reply the frame is sent again."""
_HANDSHAKE_S = 0.5
"""Time limit of the first handshake of a call, doubled with each attempt.

A connection to a server that has just died may never be answered; a new attempt reaches its successor.
"""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 1.0


class Operation(Enum):
    """Next I/O operation of the loop that drives the state machine, such as connecting or sending a frame.

    After each operation but the last three, the loop calls one of the methods named here to report the outcome.
    """

    CONNECT = "connect"
    """Connect until ``call.until``; then call ``connected()``, ``unsent()`` or ``still_starting()``."""
    SEND = "send"
    """Send ``call.opening`` and ``call.frame`` until ``call.until``; then call ``sent()`` or ``unsent()``."""
    RECEIVE = "receive"
    """Wait for a reply until ``call.until``; then call ``received()`` or ``unanswered()``."""
    PAUSE = "pause"
    """Sleep for ``call.pause_s``; then call ``paused()``."""
    DELIVER = "deliver"
    """Return the reply to the caller."""
    REFUSE = "refuse"
    """Raise the error reply that has arrived."""
    GIVE_UP = "give up"
    """Raise the error of the last attempt."""


# Looking up a member of an enum costs as much as the rest of a method.
_CONNECT, _SEND, _RECEIVE, _DELIVER = Operation.CONNECT, Operation.SEND, Operation.RECEIVE, Operation.DELIVER


class Call(msgspec.Struct, gc=False):
    """Message that is being sent and awaits its reply: a reset, a step, a question or the close."""

    frame: bytes
    number: int
    seconds: float
    wait_s: float
    """Time without a reply after which the frame is sent again."""
    deadline: float
    give_up_at: float
    """Time at which to give up on a server that cannot be reached; time spent waiting on a connection is added."""
    tried_at: float
    """Start of the latest attempt to send the call."""
    opening: bytes = b""
    """The create frame, sent before the call, or empty; if the server refuses the create, the call fails too."""
    until: float = 0.0
    """Deadline of the next operation."""
    # pause_s grows with each attempt (see paused()); the first attempt follows at once.
    pause_s: float = 0.0
    handshake_s: float = _HANDSHAKE_S
    unreached_since: float = math.inf
    was_refused: bool = False
    """Whether a connection was refused before; only the first refusal moves the deadline."""


class SessionCore:
    """State of one session; with its first call goes the frame that creates it on the server.

    After an input that leaves ``is_connected`` false, the loop must close its connection.
    """

    def __init__(self, create: bytes, deadline_s: float) -> None:
        """``create`` is the frame that creates the session on the server; ``deadline_s`` limits each call."""
        self._create, self._deadline_s = create, deadline_s
        self.committed = -1
        """Number of the last call that the server has executed; -1 before the create."""
        self.next_number = 1
        """Number of the next reset or step."""
        self.may_exist = False
        """Whether the server may have this session, because a connection was made to send the create."""
        self.since = math.inf
        """Time from which the server may have this session."""
        self.is_connected = False
        self.is_answered = True
        """Whether the last call has its reply; ``False`` if ``KeyboardInterrupt`` stopped the wait for it."""
        self.call = Call(b"", NUMBERLESS, 0.0, 0.0, 0.0, 0.0, 0.0)
        self._questions = NUMBERLESS

    def next_question(self) -> int:
        """Return a new negative number, for a question or the close, which have no place in the sequence of calls."""
        self._questions -= 1
        return self._questions

    def forget(self) -> None:
        """Forget the session, so that the next call creates a new one."""
        self.committed, self.next_number = -1, 1
        self.may_exist = self.is_connected = False

    # Inputs

    def begin(
        self,
        frame: bytes,
        number: int,
        now: float,
        give_up_s: float = math.inf,
        *,
        seconds: float | None = None,
        waits: int = _WAITS,
    ) -> Operation:
        """Begin to send the message ``frame`` at the time ``now``; return the first operation for the loop.

        ``number`` is in the message: positive for a reset or step, negative for a message that is no move in the
        episode: a question or the close. ``seconds`` is the time limit, by default that of the session. It is
        divided into ``waits`` equal parts; after each part without a reply the frame is sent again. A server that
        cannot be reached is given up after ``give_up_s`` seconds, but not before a second attempt.
        """
        if seconds is None:
            seconds = self._deadline_s
        self.call = call = Call(frame, number, seconds, seconds / waits, now + seconds, now + give_up_s, now)
        if self.committed < 0 < number:
            call.opening = self._create
        # A reply that is still to come would be taken for the reply to this call, as both have the same number.
        self.is_connected, self.is_answered = self.is_connected and self.is_answered, False
        if self.is_connected:
            call.until = now + call.wait_s
            return _SEND
        return self.started(now)

    def started(self, now: float) -> Operation:
        """Report that the server runs; return ``CONNECT``. The time limit of the handshake begins now."""
        call = self.call
        call.until = min(now + call.handshake_s, call.deadline)
        return _CONNECT

    def connected(self, now: float) -> Operation:
        """Report a new connection; return ``SEND``."""
        call = self.call
        self.is_connected, call.unreached_since = True, math.inf
        if self.committed < 0 and not self.may_exist:
            self.may_exist, self.since = True, now
        call.until = min(now + call.wait_s, call.deadline)
        return _SEND

    def sent(self, now: float) -> Operation:
        """Report that the frame was sent; return ``RECEIVE``.

        The wait for the reply begins now, because sending a large frame takes time.
        """
        call = self.call
        call.until = min(now + call.wait_s, call.deadline)
        return _RECEIVE

    def received(self, reply: Reply) -> Operation:
        """Report a reply: return ``DELIVER`` or ``REFUSE`` if it belongs to this call, else ``RECEIVE``.

        A late reply to an earlier call is dropped.
        """
        if isinstance(reply, Refused):
            return self._refused(reply)
        # A late copy of another reply is normal: a frame that was sent twice is answered twice.
        number = reply.number if isinstance(reply, Answer) else reply.call
        if number != self.call.number:
            return _RECEIVE
        if number > self.committed:
            self.committed, self.next_number = number, number + 1
        self.is_answered = True
        return _DELIVER

    def _refused(self, reply: Refused) -> Operation:
        number, call = reply.number, self.call
        is_of_create = number < 1 and bool(call.opening)
        if number not in (call.number, NUMBERLESS) and not is_of_create:
            return _RECEIVE
        if number == 0:
            self.may_exist = False  # the create itself was refused
        elif number > 0:
            self.committed = number if reply.kind in DONE_ALL_THE_SAME else max(self.committed, 0)
            self.next_number = self.committed + 1
        if is_of_create:
            # The call's own refusal is still to come, and would be taken for the reply to the next call.
            self.is_connected = False
        self.is_answered = True
        return Operation.REFUSE

    def unanswered(self, now: float) -> Operation:
        """Report that no reply came in time or the connection was lost; return ``PAUSE`` or ``GIVE_UP``."""
        operation = self._again(now)
        self.call.give_up_at += now - self.call.tried_at
        return operation

    def unsent(self, now: float, *, was_refused: bool = False) -> Operation:
        """Report that no connection was made, or it was lost before the send; return ``PAUSE`` or ``GIVE_UP``.

        A server that goes away late in a long call has the full time to come back: the first refused connection
        (``was_refused``) restarts the deadline.
        """
        call = self.call
        call.unreached_since = min(call.unreached_since, now)
        if was_refused and not call.was_refused:
            call.was_refused, call.deadline = True, now + call.seconds
        return self._again(now)

    def still_starting(self, now: float, waited_s: float) -> Operation:
        """Report that the server is still starting after a wait of ``waited_s``; return ``PAUSE`` or ``GIVE_UP``.

        The wait does not count as an attempt: it neither lengthens the handshake nor uses up ``give_up_s``.
        """
        self.call.handshake_s /= 2
        self.call.give_up_at += waited_s
        return self._again(now)

    def _again(self, now: float) -> Operation:
        self.is_connected, call = False, self.call
        if now + call.pause_s > call.deadline or call.tried_at > call.give_up_at:
            return Operation.GIVE_UP
        call.pause_s = min(call.pause_s, max(call.give_up_at - now, 0.0))
        return Operation.PAUSE

    def paused(self, now: float) -> Operation:
        """Report the end of a pause; return ``CONNECT``. The next pause and handshake get longer."""
        call = self.call
        call.pause_s = min(1.5 * call.pause_s + _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        call.handshake_s = min(2 * call.handshake_s, max(call.give_up_at - now, _HANDSHAKE_S))
        call.tried_at = now
        return self.started(now)
