"""The execution of a step: its clock and open tool calls while it runs, and its outcome.

The outcome is built from the report of a worker, which a program may have forged.
"""

from __future__ import annotations

import json
import math
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.program_result import Result
from envweave_gym.sandbox.inside.channel import Message

if TYPE_CHECKING:
    from envweave_gym.sandbox.session import Session

MAX_CALLS, MAX_OPEN_CALLS = 10_000, 256
"""Tool calls of a step, in total and at a time."""
MAX_OPEN_BYTES = 32 << 20
"""Bytes of all calls without a reply."""
LONGEST_REPLY = 16 << 20
"""Bytes of JSON in a reply; many more would exceed the memory of a program."""
GRACE_S = 0.5
"""Time between the interruption of a step and the end of its process."""
_TOTAL_TIMEOUTS = 20.0
"""How many times its own timeout a step may last, waits for tools included."""
_THREAD_IDLE_S = 5.0
_MAX_VARIABLES = 300
_LONGEST_NAME, _LONGEST_TRACE = 200, 20_000
_MAX_DEPTH = 100
"""Limits of a report, which honest workers stay below: variables, characters, nested lists and objects."""


class Final(msgspec.Struct, frozen=True):
    """The final answer of a program."""

    text: str
    """Its ``str``."""
    value: Any = None
    """Its JSON, if it has any."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a program."""

    kind: str
    """The name of its class."""
    shown: str = ""
    """Its ``repr``, if ``snapshot`` requested it."""


class Execution(Result, frozen=True, kw_only=True):
    """The outcome of a step: all of it that is the same whenever the same program runs.

    ``value`` is that of the last expression: its JSON, or the text of its ``repr``.
    """

    shown: str = ""
    """The ``repr`` of the value; empty if there is none."""
    stderr: str = ""
    error: str = ""
    """The traceback."""
    error_type: str = ""
    """The class of the exception; or what ended the step from outside: ``StepTimeout``, ``OutputLimit`` or
    ``WorkerDied``."""
    timed_out: bool = False
    state_lost: bool = False
    """Whether all variables are lost: the process was killed, or died."""
    restored: bool = False
    """Whether a copy from before the step has replaced the process, which was lost."""
    variables: dict[str, Variable] = {}
    """The variables that the program has defined so far."""
    watched: dict[str, Any] = {}
    """The JSON of the variables named by ``watch``."""
    final: Final | None = None

    def __post_init__(self) -> None:
        """Skip the check of :class:`Result`, as :func:`execution_from` converts each field."""

    def answers(self) -> Iterator[Any]:
        """Yield the final answer, if there is one; else the value, or the last line printed."""
        if self.final is None:
            yield from super().answers()
        else:
            yield self.final.text if self.final.value is None else self.final.value


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a step, which differs every time."""

    seconds: float = 0.0
    """The program's own time, without its waits for tools."""
    wall: float = 0.0
    """Seconds from the begin of the step to its end."""
    calls: int = 0
    """Tool calls."""
    written: int = 0
    """Bytes of output and errors."""


def execution_from(report: Message, stdout: str, stderr: str, longest: int, snapshot: int) -> Execution:
    """Build the outcome from a report, field by field.

    ``longest`` limits the characters of the value, ``snapshot`` those of each variable.
    """
    shown = text_of(report.get("shown"), longest)
    value, watched = report.get("json"), json_of(report.get("watched"))
    final = report.get("final")
    return Execution(
        success=report.get("success") is True,
        value=json_of(value[0]) if isinstance(value, list) and value else shown or None,
        stdout=stdout,
        stderr=stderr,
        shown=shown,
        error=text_of(report.get("error"), _LONGEST_TRACE),
        error_type=text_of(report.get("error_type"), _LONGEST_NAME),
        variables=_variables_from(report.get("variables"), snapshot),
        watched=watched if isinstance(watched, dict) else {},
        final=_final_from(final) if isinstance(final, dict) else None,
    )


def text_of(value: Any, longest: int | None = None) -> str:
    """Return a text, cut to a length and valid in UTF-8; anything else gives an empty one."""
    return value[:longest].encode(errors="replace").decode() if isinstance(value, str) else ""


def json_of(value: Any, deepest: int = _MAX_DEPTH) -> Any:
    """Return JSON of limited depth, with finite numbers and valid texts; the rest becomes ``None``."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [json_of(item, deepest - 1) for item in value] if deepest else None
    if isinstance(value, dict):
        return {text_of(key): json_of(item, deepest - 1) for key, item in value.items()} if deepest else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _final_from(given: dict[str, Any]) -> Final:
    value = given.get("json")
    return Final(text_of(given.get("text")), json_of(value[0]) if isinstance(value, list) and value else None)


def _variables_from(given: Any, snapshot: int) -> dict[str, Variable]:
    if not isinstance(given, dict):
        return {}
    return {
        text_of(name, _LONGEST_NAME): Variable(text_of(one[0], _LONGEST_NAME), text_of(one[1], snapshot))
        for name, one in list(given.items())[:_MAX_VARIABLES]
        if isinstance(one, list) and len(one) == 2
    }


# A running step


class Call(msgspec.Struct, frozen=True):
    """A tool call of a program that waits for its reply."""

    number: int
    name: str
    arguments: dict[str, Any]


class Step:
    """The state of a running step.

    The program's own time stands still while tool calls are open; its total time stands still only while the
    step is paused, when the process is frozen and the caller answers calls.
    """

    def __init__(self, timeout: float, snapshot: int, before: Session | None, no_copy: str) -> None:
        """``before`` is a copy of the session to restore; ``no_copy`` says why there is none."""
        self.seq, self.timeout, self.snapshot = secrets.randbits(48), timeout, snapshot
        self.before, self.no_copy = before, no_copy
        self.report: Message | None = None
        self.death = ""
        """How its process ended."""
        self.stopped: tuple[str, str] | None = None
        """The error type and the sentence of an interruption."""
        self.call_count = 0
        self.open_calls: dict[int, int] = {}
        """The bytes of each call without a reply, by number."""
        self.deferred: list[Call] = []
        """Calls that the caller answers and has not yet been given."""
        self.is_drained = False
        """Whether the last wait brought no message."""
        self.replies: deque[tuple[int, str]] = deque()
        """Numbers and JSON of replies, which any thread may append."""
        self._started = self._running_since = time.monotonic()
        self._used = 0.0
        self._deadline = self._started + _TOTAL_TIMEOUTS * timeout
        self._grace_end = 0.0
        self._paused_at: float | None = None

    # The clock

    def time_left(self) -> float:
        """Return the seconds until the step is interrupted, or after that until its process is killed."""
        now = time.monotonic()
        if self.stopped is not None:
            return self._grace_end - now
        if self.open_calls:
            return self._deadline - now
        return min(self.timeout - self._used - (now - self._running_since), self._deadline - now)

    def pause(self) -> None:
        """Stop the clock, as the process is frozen."""
        self._paused_at = time.monotonic()

    def unpause(self) -> bool:
        """Continue the clock; return whether it was paused."""
        if self._paused_at is None:
            return False
        passed, self._paused_at = time.monotonic() - self._paused_at, None
        self._started += passed
        self._running_since += passed
        self._deadline += passed
        return True

    def times(self) -> tuple[float, float]:
        """Return the seconds of the program's own time, and of total time."""
        now = time.monotonic()
        return self._used + (0.0 if self.open_calls else now - self._running_since), now - self._started

    # Calls

    def open_call(self, number: int, size: int) -> bool:
        """Register a call of this size; return False if its number is taken."""
        if number in self.open_calls:
            return False
        if not self.open_calls:
            self._used += time.monotonic() - self._running_since
        self.call_count += 1
        self.open_calls[number] = size
        return True

    def exceeds_limits(self) -> bool:
        """Return whether there are too many calls, or open calls with too many bytes."""
        if self.call_count > MAX_CALLS or len(self.open_calls) > MAX_OPEN_CALLS:
            return True
        return sum(self.open_calls.values()) > MAX_OPEN_BYTES

    def take_replies(self) -> list[str]:
        """Take the replies of open calls; the program's time continues if none is left open."""
        found: list[str] = []
        while self.replies:
            number, text = self.replies.popleft()
            if number in self.open_calls:
                del self.open_calls[number]
                found.append(text)
        if found and not self.open_calls:
            self._running_since = time.monotonic()
        return found

    def stop(self, error_type: str, sentence: str) -> None:
        """Note why the step is interrupted; its open calls fail."""
        self.stopped = error_type, sentence
        self._grace_end = time.monotonic() + GRACE_S
        self.deferred.clear()
        for number in list(self.open_calls):
            self.replies.append(reply(Call(number, "", {}), None, "the step is over"))

    def explain(self, done: Execution, variables: dict[str, Variable]) -> Execution:
        """Add to the outcome what ended the step from outside; ``variables`` are those from before it."""
        if self.stopped is None and not self.death:
            return done
        error_type, sentence = self.stopped or ("WorkerDied", "")
        timed_out = error_type == "StepTimeout"
        if not self.death and done.success:
            return msgspec.structs.replace(done, timed_out=timed_out)
        trace = done.error.rpartition("\n")[0]
        done = msgspec.structs.replace(
            done,
            success=False,
            error="\n".join(filter(None, (trace, f"{error_type}: {self._consequence(sentence)}"))),
            error_type=error_type,
            timed_out=timed_out,
        )
        if self.death and self.before is not None:
            return msgspec.structs.replace(done, restored=True, variables=variables)
        return msgspec.structs.replace(done, state_lost=bool(self.death))

    def _consequence(self, sentence: str) -> str:
        if not self.death:
            return f"{sentence}; its variables are kept"
        died = f"{sentence}; {self.death}" if sentence else f"its process {self.death}"
        if self.before is not None:
            return f"{died}, and all is as before the step"
        return f"{died}, and all variables are gone" + (f" ({self.no_copy})" if self.no_copy else "")


def reply(call: Call, value: Any, error: str | None) -> tuple[int, str]:
    """Return the number and the JSON of a reply; one that is too long becomes an error."""
    try:
        text = json.dumps({"id": call.number, "value": value, "error": error})
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidArgument(
            f"{call.name} is answered with {shown(value)}, which is no JSON: {problem}"
        ) from None
    if len(text) > LONGEST_REPLY:
        return reply(call, None, f"{call.name} gave {len(text)} bytes, and a program takes {LONGEST_REPLY}")
    return call.number, text


class ToolThreads:
    """Runs tools in daemon threads, one for each tool at a time; idle threads are reused.

    A ``ThreadPoolExecutor`` would wait for its threads at exit, and a tool may never return.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        """How many threads wait for work that is not in the queue yet."""
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], None]) -> None:
        """Run this in a thread."""
        with self._lock:
            self._work.put(work)
            if self._idle:
                self._idle -= 1
                return
        threading.Thread(target=self._run, name="tool", daemon=True).start()

    def close(self) -> None:
        """End the idle threads."""
        with self._lock:
            for _ in range(self._idle):
                self._work.put(None)
            self._idle = 0

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work
            with self._lock:
                self._idle += 1

    def _next(self) -> Callable[[], None] | None:
        while True:
            try:
                return self._work.get(timeout=_THREAD_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._work.empty():
                        self._idle -= 1
                        return None
