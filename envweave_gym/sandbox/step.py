"""A step under way: its time, the calls of the host that it waits for, and how it is told in the end."""

from __future__ import annotations

import json
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.sandbox.clock import Clock
from envweave_gym.sandbox.inside.channel import Message
from envweave_gym.sandbox.result import Execution, Variable

if TYPE_CHECKING:
    from envweave_gym.sandbox.session import Session

MOST_CALLS, AT_ONCE = 10_000, 256
"""So many calls a step may make, and so many of them at once."""
BYTES_AT_ONCE = 32 << 20
"""Bytes that the calls without an answer may have together."""
_WALL = 20.0
"""So many times as long as a step itself may take, all it waits for may."""
LONGEST_REPLY = 16 << 20
"""So many bytes of JSON a tool may answer with; many more would be too much for the memory of a program."""


class Call(msgspec.Struct, frozen=True):
    """A call of the host that a program waits for."""

    number: int
    name: str
    arguments: dict[str, Any]


class Step:
    """What is known of a step until it has ended."""

    def __init__(self, timeout: float, snapshot: int, before: Session | None, no_copy: str) -> None:
        """``snapshot`` is how much of each variable is told.

        ``before`` is a copy of the session from before the step, and ``no_copy`` why there is none.
        """
        self.seq, self.timeout, self.snapshot = secrets.randbits(48), timeout, snapshot
        self.clock = Clock(timeout, _WALL * timeout)
        self.is_held = False
        """Whether it is frozen while its caller thinks about its calls."""
        self.told: Message | None = None
        """What its worker says came of it."""
        self.died = ""
        """How its process ended."""
        self.why: tuple[str, str] | None = None
        """Why it was interrupted: what that is called, and a sentence."""
        self.end_of_grace = 0.0
        self.is_all_heard = False
        """Whether nothing more was said in the last turn."""
        self.calls: list[Call] = []
        """Those that the caller is to answer, and has not been given."""
        self.waiting: dict[int, int] = {}
        """The numbers of the calls without an answer, and how many bytes each has."""
        self.count = 0
        self.answers: deque[tuple[int, str]] = deque()
        """The numbers and answers of calls, put here by any thread."""
        self.before, self.no_copy = before, no_copy

    def hold(self) -> None:
        """It is frozen: no time passes."""
        self.is_held = True
        self.clock.hold()

    def release(self) -> None:
        """It is frozen no more."""
        self.is_held = False
        self.clock.release()

    def wait_for(self, number: int, size: int) -> bool:
        """Take down a call; whether it is one more."""
        if number in self.waiting:
            return False
        self.count += 1
        self.waiting[number] = size
        self.clock.pause()
        return True

    def has_too_many_calls(self) -> bool:
        """Whether it has made more calls than it may, or too many wait for an answer at once."""
        at_once = len(self.waiting) > AT_ONCE or sum(self.waiting.values()) > BYTES_AT_ONCE
        return self.count > MOST_CALLS or at_once

    def answered(self) -> list[str]:
        """The answers that are there; the time of the program goes on when it waits for none."""
        found: list[str] = []
        while self.answers:
            number, reply = self.answers.popleft()
            if number in self.waiting:
                del self.waiting[number]
                found.append(reply)
        if not self.waiting:
            self.clock.go_on()
        return found


def reply(call: Call, value: Any, error: str | None) -> tuple[int, str]:
    """The answer to a call as a program's worker reads it; one that is too long is an error instead."""
    try:
        text = json.dumps({"id": call.number, "value": value, "error": error})
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidArgument(
            f"{call.name} is answered with {shown(value)}, which is no JSON: {problem}"
        ) from None
    if len(text) > LONGEST_REPLY:
        return reply(call, None, f"{call.name} gave {len(text)} bytes, and a program takes {LONGEST_REPLY}")
    return call.number, text


def explained(done: Execution, step: Step, variables: dict[str, Variable]) -> Execution:
    """The step, with what has ended it from outside; ``variables`` are those of before."""
    if step.why is None and not step.died:
        return done
    kind, why = step.why or ("WorkerDied", "")
    if not step.died and step.told is not None and step.told.get("success") is True:
        return msgspec.structs.replace(done, timed_out=kind == "StepTimeout")
    trace = done.error.rpartition("\n")[0]
    done = msgspec.structs.replace(
        done,
        success=False,
        error="\n".join(filter(None, (trace, f"{kind}: {_sentence(why, step)}"))),
        error_type=kind,
        timed_out=kind == "StepTimeout",
    )
    if step.died and step.before is not None:
        return msgspec.structs.replace(done, restored=True, variables=variables)
    return msgspec.structs.replace(done, state_lost=bool(step.died))


def _sentence(why: str, step: Step) -> str:
    if not step.died:
        return f"{why}; its variables are kept"
    died = f"{why}; {step.died}" if why else f"its process {step.died}"
    if step.before is not None:
        return f"{died}, and all is as before the step"
    return f"{died}, and all variables are gone" + (f" ({step.no_copy})" if step.no_copy else "")
