"""The execution of one program in a sandbox session: clocks and open tool calls while it runs, the outcome after it.

The outcome is built from the worker's report. The program shares the worker's process and may have forged the
report, so every field is checked.
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
"""Limits of a step's tool calls: in total, and waiting for a reply at the same time."""
MAX_OPEN_BYTES = 32 << 20
"""Limit of bytes of all tool calls that wait for a reply."""
MAX_REPLY_BYTES = 16 << 20
"""Limit of bytes of JSON in a tool's reply; larger ones would exceed the memory of a program."""
GRACE_S = 0.5
"""Seconds that an interrupted step may run on before its process is killed."""
_TOTAL_TIMEOUTS = 20.0
"""Limit of a step's duration, including waits for tools, as a multiple of its timeout."""
_THREAD_IDLE_S = 5.0
_MAX_VARIABLES = 300
_LONGEST_NAME, _LONGEST_TRACE = 200, 20_000
_MAX_DEPTH = 100
"""Limits of a report: number of variables, characters of names and tracebacks, nesting of JSON.

The worker's own code stays below them; only a forged report is cut."""


class Final(msgspec.Struct, frozen=True):
    """The final answer of a program."""

    text: str
    """The answer as ``str(answer)``."""
    value: Any = None
    """The answer as a JSON value; ``None`` if it cannot be written as JSON."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a program as :class:`Execution` reports it: its class name, and its ``repr`` on request."""

    kind: str
    """The name of the value's class."""
    shown: str = ""
    """The ``repr`` of the value; empty unless ``snapshot`` requested it."""


class Execution(Result, frozen=True, kw_only=True):
    """The outcome of running one program, without the parts that differ between two runs of it (see :class:`Usage`).

    ``value`` is the value of the last expression: as JSON if possible, otherwise the text of its ``repr``.
    """

    shown: str = ""
    """The ``repr`` of the value; empty if there is no value."""
    stderr: str = ""
    error: str = ""
    """The traceback; empty if nothing was raised."""
    error_type: str = ""
    """The name of the exception's class.

    If the step was ended from outside, it is ``StepTimeout``, ``OutputLimit`` or ``WorkerDied``."""
    timed_out: bool = False
    state_lost: bool = False
    """Whether all variables are lost, because the process died or was killed."""
    restored: bool = False
    """Whether the process was lost and a copy from before the step has taken its place."""
    variables: dict[str, Variable] = {}
    """The variables that the episode's programs have defined so far, by name."""
    watched: dict[str, Any] = {}
    """The values of the variables named by ``watch``; those that are not JSON are left out."""
    final: Final | None = None

    def __post_init__(self) -> None:
        """Skip the check of :class:`Result`, because :func:`execution_from` converts each field."""

    def answers(self) -> Iterator[Any]:
        """Yield the final answer if there is one; else the value, or the last line printed."""
        if self.final is None:
            yield from super().answers()
        else:
            yield self.final.text if self.final.value is None else self.final.value


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of running one program, such as its time; it differs between runs of the same program."""

    seconds: float = 0.0
    """The seconds that the program itself took, without waits for tools."""
    wall: float = 0.0
    """The seconds from the start of the step to its end."""
    calls: int = 0
    """The number of tool calls."""
    written: int = 0
    """The number of bytes written to ``stdout`` and ``stderr``."""


def execution_from(report: Message, stdout: str, stderr: str, longest: int, snapshot: int) -> Execution:
    """Convert a worker's report to an outcome, field by field; a field of a wrong type becomes empty.

    ``longest`` limits the characters of the value's ``repr``, ``snapshot`` those of each variable's.
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
    """Return a text, cut to ``longest`` characters and valid in UTF-8; ``""`` for anything but a text."""
    return value[:longest].encode(errors="replace").decode() if isinstance(value, str) else ""


def json_of(value: Any, deepest: int = _MAX_DEPTH) -> Any:
    """Return a JSON value with finite numbers, valid texts and at most ``deepest`` levels.

    Parts that are none of that become ``None``.
    """
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
    """A tool call of a program, which waits for the reply."""

    number: int
    name: str
    arguments: dict[str, Any]


class Step:
    """The state of a running program (a step of the session): two clocks, open tool calls, and the worker's report.

    The clock of the program's own time stops while tool calls are open. The clock of total time stops only while the
    step is paused: then the process is frozen and the caller answers calls.
    """

    def __init__(self, timeout: float, snapshot: int, before: Session | None, no_copy: str) -> None:
        """Start both clocks, with a limit of ``timeout`` seconds of the program's own time.

        ``snapshot`` limits the characters of each variable's ``repr`` in the outcome. ``before`` is a forked copy of
        the session, which takes its place if the worker dies. ``no_copy`` is the reason why the requested copy
        could not be made, else ``""``.
        """
        self.seq, self.timeout, self.snapshot = secrets.randbits(48), timeout, snapshot
        self.before, self.no_copy = before, no_copy
        self.report: Message | None = None
        self.death = ""
        """The sentence on how the step's process ended; empty while it lives."""
        self.stopped: tuple[str, str] | None = None
        """The error type and the reason of an interruption; ``None`` if the step was not interrupted."""
        self.call_count = 0
        self.open_calls: dict[int, int] = {}
        """The sizes in bytes of the calls that wait for a reply, by call number."""
        self.deferred: list[Call] = []
        """The calls that :meth:`Session.wait` will return next, for its caller to answer."""
        self.is_drained = False
        """Whether the last wait for messages brought none, so that no further call is on its way."""
        self.replies: deque[tuple[int, str]] = deque()
        """The call numbers and JSON texts of replies to send; tool threads append to it."""
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
        """Stop both clocks while the process is frozen."""
        self._paused_at = time.monotonic()

    def unpause(self) -> bool:
        """Let both clocks run on; return whether the step was paused."""
        if self._paused_at is None:
            return False
        passed, self._paused_at = time.monotonic() - self._paused_at, None
        self._started += passed
        self._running_since += passed
        self._deadline += passed
        return True

    def times(self) -> tuple[float, float]:
        """Return the seconds of the program's own time and of total time."""
        now = time.monotonic()
        return self._used + (0.0 if self.open_calls else now - self._running_since), now - self._started

    # Calls

    def open_call(self, number: int, size: int) -> bool:
        """Register a call of ``size`` bytes and stop the program's clock; return False if the number is in use."""
        if number in self.open_calls:
            return False
        if not self.open_calls:
            self._used += time.monotonic() - self._running_since
        self.call_count += 1
        self.open_calls[number] = size
        return True

    def exceeds_limits(self) -> bool:
        """Return whether the step has made too many calls, or its open calls have too many bytes."""
        if self.call_count > MAX_CALLS or len(self.open_calls) > MAX_OPEN_CALLS:
            return True
        return sum(self.open_calls.values()) > MAX_OPEN_BYTES

    def take_replies(self) -> list[str]:
        """Remove and return the replies to send, as JSON texts; if no call stays open, the program's clock runs on."""
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
        """Interrupt the step: record its error, let all open calls fail, and start the period of grace.

        ``error_type`` and ``sentence`` become the error of the outcome.
        """
        self.stopped = error_type, sentence
        self._grace_end = time.monotonic() + GRACE_S
        self.deferred.clear()
        for number in list(self.open_calls):
            self.replies.append(reply(Call(number, "", {}), None, "the step is over"))

    def explain(self, done: Execution, variables: dict[str, Variable]) -> Execution:
        """Return the outcome ``done``, with the error that ended the step from outside, if one did.

        ``variables`` are those from before the step, which a restored copy has again.
        """
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
    """Return a call's number and its reply as JSON; a reply that is too long becomes an error for the program."""
    try:
        text = json.dumps({"id": call.number, "value": value, "error": error})
    except (TypeError, ValueError, RecursionError) as problem:
        raise InvalidArgument(
            f"{call.name} is answered with {shown(value)}, which cannot be written as JSON: {problem}"
        ) from None
    if len(text) > MAX_REPLY_BYTES:
        return reply(
            call, None, f"{call.name} gave {len(text)} bytes; at most {MAX_REPLY_BYTES} are accepted"
        )
    return call.number, text


class ToolThreads:
    """Runs tools in daemon threads, one for each tool at a time; idle threads are reused.

    A ``ThreadPoolExecutor`` would wait for its threads at exit, and a tool may never return.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        """The number of threads that wait for work and for which none is in the queue yet."""
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` in an idle thread, or in a new one if none is idle."""
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
