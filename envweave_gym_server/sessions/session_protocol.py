"""State machines of sessions, without I/O: numbering of calls, repeats, leases and capacity.

They hold no locks and read no clock: methods that need the time take it as an argument. ``session.py`` and
``session_table.py`` drive them under locks; the simulation of the tests drives them on a virtual clock.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from envweave_gym.core.faults import AtCapacity, InvalidArgument, shown
from envweave_gym.wire.messages import Ask, Call, Close, Created, Refused, Reset, Step, encode, number_of

CREATED = encode(Created(0))
"""Reply to the call that creates a session."""
SESSION_ID = r"(?!\.{1,2}$)[A-Za-z0-9_.-]{1,128}"
"""Pattern of session ids; the names of directories in paths are excluded, because they never reach a server."""
STOPPING = "the server is stopping; use another"


class Verdict(Enum):
    """Decision whether to execute, answer, repeat or refuse a message."""

    DO = "do"
    """Execute this reset or step, and :meth:`SessionCore.commit` its reply."""
    ANSWER = "answer"
    """Answer this question, which changes nothing."""
    CLOSE = "close"
    REPEAT = "repeated"
    """Send the stored reply, because the call was executed before."""
    REFUSE = "refused"
    """Send the error reply, because another call had this number, or calls before it are missing."""


class Decision(NamedTuple):
    """Verdict on a message; ``reply`` is the frame to send for ``REPEAT`` and ``REFUSE``, else empty."""

    verdict: Verdict
    reply: bytes = b""


_NUMBERED = (Reset, Step)  # a union would be built anew at each call
_DO, _ANSWER, _CLOSE = Decision(Verdict.DO), Decision(Verdict.ANSWER), Decision(Verdict.CLOSE)


class SessionCore:
    """State of one session: checks the numbers of its calls, and measures how long nobody has used it.

    The next number is executed. The last one is answered with the stored reply if the frame is the same. Any
    other is refused, with the number of the last call that was executed.
    """

    def __init__(self, session_id: str, create_frame: bytes, now: float) -> None:
        self.id, self.used = session_id, now
        self.committed = 0
        """Number of the last call that was executed."""
        self.closed = False
        self.last_reply = CREATED
        self._create_frame = self._last_frame = create_frame

    def receive(self, message: Call, frame: bytes) -> Decision:
        """Return the decision about a message; ``frame`` is its encoding."""
        if isinstance(message, _NUMBERED) and message.call == self.committed + 1:
            return _DO
        if isinstance(message, Ask):
            return _ANSWER
        if isinstance(message, Close):
            return _CLOSE
        if frame == self._create_frame:  # clients send it along with the first reset, and repeat it with that
            return Decision(Verdict.REPEAT, CREATED)
        number = number_of(message)
        if number == self.committed and frame == self._last_frame:
            return Decision(Verdict.REPEAT, self.last_reply)
        return Decision(Verdict.REFUSE, encode(self._conflict(number)))

    def _conflict(self, number: int) -> Refused:
        last = self.committed
        reason = "another call had that number" if number == last else f"the next call is {last + 1}"
        return Refused(number, "Conflict", f"call {number} of session {self.id} is refused: {reason}", last)

    def commit(self, frame: bytes, reply: bytes, now: float) -> None:
        """Store the reply to the call that was executed."""
        self.committed += 1
        self.used = now
        self._last_frame, self.last_reply = frame, reply

    def idle_s(self, now: float, *, wanted: bool) -> float:
        """Return the seconds since the last use; while the session is ``wanted``, the lease starts anew."""
        if wanted:
            self.used = now
        return now - self.used


class SlotState(Enum):
    """Whether the session that a create message names exists, is being made, or got a new slot."""

    RESERVED = "reserved"
    """A slot was reserved for the new session: make its environment, then call :meth:`TableCore.opened`."""
    BEING_MADE = "being made"
    """The same create is being executed: wait for its end."""
    OPEN = "open"
    """The session exists: pass the call on to it."""


class TableCore:
    """State of all sessions together: counts them and their environments, and refuses those beyond the limits."""

    def __init__(self, max_sessions: int, max_environments: int) -> None:
        self._max_sessions, self._max_environments = max_sessions, max_environments
        self._rows: dict[str, int] = {}
        """Number of environments of each session."""
        self._being_made: set[str] = set()
        self.stopping = False

    def create(self, session_id: str, rows: int) -> SlotState:
        """Look a session up, or reserve slots for it; raise ``AtCapacity`` if there are none."""
        if session_id in self._being_made:
            return SlotState.BEING_MADE
        if session_id in self._rows:
            return SlotState.OPEN
        if not re.fullmatch(SESSION_ID, session_id):
            raise InvalidArgument(
                f"{shown(session_id)} is no id of a session; take up to 128 letters, digits and . _ -"
            )
        if self.stopping:
            raise AtCapacity(STOPPING)
        if len(self._rows) >= self._max_sessions:
            count = f"{len(self._rows)} of {self._max_sessions}"
            raise AtCapacity(f"{count} sessions are open; close one or come again")
        self._rows[session_id] = self._checked_rows(rows)
        self._being_made.add(session_id)
        return SlotState.RESERVED

    def _checked_rows(self, rows: int) -> int:
        limit, there = self._max_environments, self.environments
        if rows > limit:
            return 0  # it never fits: making it is refused, in a sentence that names the environment
        if there + rows > limit:
            raise AtCapacity(
                f"{there} of {limit} environments are open, and {rows} more do not fit; "
                "close some or come again"
            )
        return rows

    def opened(self, session_id: str) -> None:
        """Record that the environment of a reserved session was made."""
        self._being_made.discard(session_id)

    def release(self, session_id: str) -> None:
        """Free the slots of a session that closes, or was not made."""
        self._rows.pop(session_id, None)
        self._being_made.discard(session_id)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def environments(self) -> int:
        """Number of environments of all sessions together."""
        return sum(list(self._rows.values()))

    @property
    def being_made(self) -> int:
        """Number of sessions whose environments are being made."""
        return len(self._being_made)
