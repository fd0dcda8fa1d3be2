"""A running step: its clock, its open tool calls, and the text of what stopped it."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.sandbox.execution import Execution, Variable
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
