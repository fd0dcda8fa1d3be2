"""An episode of untrusted Python: steps that keep their variables, end in time, and may be forked."""

from __future__ import annotations

import os
import secrets
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec

from envweave_gym.faults import InvalidArgument, NotAvailable
from envweave_gym.sandbox.clock import Clock
from envweave_gym.sandbox.folders import remove
from envweave_gym.sandbox.inside.channel import Message
from envweave_gym.sandbox.process import WorkerDied, WorkerProcess
from envweave_gym.sandbox.result import Execution, Limits, Usage
from envweave_gym.sandbox.telling import execution_of, number_of, text_of
from envweave_gym.tools import ToolError, ToolRegistry

MOST_SOURCE = 4 << 20
_GRACE = 0.5
"""So many seconds a step that was interrupted has to end, before its process is killed."""
_CALLS, _AT_ONCE = 10_000, 256
"""So many calls a step may make, and so many of them at once."""
_WALL = 20.0
"""So many times as long as a step itself may take, all it waits for may."""


class Call(msgspec.Struct, frozen=True):
    """A call of the host that a program waits for."""

    number: int
    name: str
    arguments: dict[str, Any]


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What a program finds when its episode begins."""

    values: dict[str, Any] = {}
    """Names for JSON values."""
    imports: tuple[str, ...] = ("math",)
    ends: dict[str, str] = {}
    """Names for what ends an episode, ``final`` of a value or ``final_var`` of a name; ``show`` lists them."""
    kept: tuple[str, ...] = ()
    """Those of ``values`` that mean the same before every step, as all other names of the host do."""
    source: str = ""
    """A program that is run before the first step, as if it were the host's."""
    seed: int = 0
    """Of the module ``random``."""


class Session:
    """One episode. Not for several threads at a time; a forked process has none."""

    def __init__(
        self, process: WorkerProcess, limits: Limits, threads: Executor, copy: Callable[[Session], Session]
    ) -> None:
        """``threads`` run the tools, and ``copy`` makes another session that goes on from here."""
        self.process, self.limits = process, limits
        self._threads, self._copy = threads, copy
        self._tools, self._asked = ToolRegistry(), frozenset[str]()
        self._answers: deque[Answer] = deque()
        self._sleeper, self._wake = os.pipe()
        os.set_blocking(self._sleeper, False)
        self._waking = threading.Lock()
        self._step: _Step | None = None
        self._is_closed = False
        self.why_lost = ""
        """What its process ended of, where it has."""
        self.usage = Usage()
        """What the last step cost."""

    @property
    def folder(self) -> str:
        """The folder that it works in."""
        return self.process.folder

    # What programs find

    def name(self, names: Names, tools: ToolRegistry | None = None, asked: Collection[str] = ()) -> None:
        """Say what programs find; calls of the tools in ``asked`` are answered by :meth:`answer`."""
        self._tools, self._asked = tools or ToolRegistry(), frozenset(asked)
        told = msgspec.to_builtins(names)
        self._order({"op": "names", **told, "tools": self._tools.specs()}, "named")
        if names.source:
            done = self.run(names.source)
            if not done.success:
                raise InvalidArgument(f"the program that every episode begins with fails: {done.error}")

    def _order(self, message: Message, answer: str) -> Message:
        """Give an order that is no step, and wait for what comes of it."""
        process = self._there()
        process.thaw()
        process.send(message)
        return process.await_(answer)

    # Steps

    def run(
        self,
        code: str,
        *,
        timeout: float = 10.0,
        checkpoint: bool = False,
        snapshot: int = 0,
        watch: Sequence[str] = (),
    ) -> Execution:
        """Run a program to its end.

        After ``timeout`` seconds of its own it is interrupted, and keeps its variables; one that does not
        heed that is killed. With ``checkpoint`` all is then as before. ``snapshot`` is how many characters of
        each variable are told, and ``watch`` names some whose values are.
        """
        before = self._copy(self) if checkpoint else None
        try:
            self.begin(code, timeout=timeout, snapshot=snapshot, watch=watch)
            while not isinstance(done := self.wait(), Execution):
                for call in done:
                    self.answer(call, error=f"there is nobody to answer {call.name}")
            if before is not None and done.state_lost:
                self._become(before)
                done = msgspec.structs.replace(done, state_lost=False, restored=True)
        finally:
            if before is not None:
                before.close()
        return done

    def begin(
        self, code: str, *, timeout: float = 10.0, snapshot: int = 0, watch: Sequence[str] = ()
    ) -> None:
        """Let a program run; :meth:`wait` tells what comes of it."""
        process = self._there()
        if len(code) > MOST_SOURCE:
            raise InvalidArgument(f"{len(code)} characters are no program; give at most {MOST_SOURCE}")
        self._step = step = _Step(timeout)
        for stream in (process.out, process.err):
            stream.drain()
            stream.begin()
        self._answers.clear()
        process.thaw()
        order = {"op": "exec", "code": code, "seq": step.seq, "longest": self.limits.text}
        try:
            process.send({**order, "snapshot": snapshot, "watch": list(watch)})
        except WorkerDied as error:
            step.died = str(error)

    def wait(self) -> Execution | list[Call]:
        """What came of the step; or the calls that wait for :meth:`answer`."""
        step = self._step
        if step is None:
            raise InvalidArgument("no program runs")
        try:
            while step.told is None and not step.died and not (step.calls and step.is_heard):
                self._turn(step)
        except WorkerDied as error:
            step.died = step.died or str(error)
        if step.told is None and not step.died:
            calls, step.calls = step.calls, []
            return calls
        return self._end(step)

    def answer(self, call: Call, value: Any = None, error: str | None = None) -> None:
        """Answer a call; with ``error`` it fails."""
        self._answers.append((self._step, call.number, value, error))

    def _turn(self, step: _Step) -> None:
        """Wait for what happens next, and see to it."""
        process = self.process
        self._reply(step)
        ready = step.poll(self._polled(), self._patience(step))
        if process.out.descriptor in ready:
            process.out.read()
        if process.err.descriptor in ready:
            process.err.read()
        if self._sleeper in ready:
            os.read(self._sleeper, 4096)
        if process.forks is not None and process.forks.descriptor in ready:
            process.forks.answer()
        step.is_heard = process.fileno() not in ready
        for message in process.receive() if not step.is_heard else ():
            self._hear(step, message)
        if step.told is None:
            self._watch(step)

    def _polled(self) -> list[int]:
        process = self.process
        polled = [process.fileno(), process.out.descriptor, process.err.descriptor, self._sleeper]
        return polled if process.forks is None else [*polled, process.forks.descriptor]

    def _patience(self, step: _Step) -> float:
        if step.calls:
            return 0.0
        return step.end_of_grace - time.monotonic() if step.why else step.clock.left()

    def _hear(self, step: _Step, message: Message) -> None:
        event, number = message.get("ev"), message.get("id")
        if event == "result" and message.get("seq") == step.seq:
            step.told = message
        elif event == "call" and type(number) is int and step.told is None:
            self._call(step, number, message)

    def _call(self, step: _Step, number: int, message: Message) -> None:
        name, args, kwargs = text_of(message.get("name")), message.get("args"), message.get("kwargs")
        call = Call(number, name, kwargs if isinstance(kwargs, dict) else {})
        step.count += 1
        if name not in self._tools:
            self.answer(call, error=f"there is no tool {name!r}")
        elif args or step.count > _CALLS or len(step.waiting) >= _AT_ONCE:
            self.answer(
                call,
                error=f"{name}: arguments are named, and a step has at most {_CALLS} calls, "
                f"{_AT_ONCE} of them at once",
            )
        elif name in self._asked:
            step.calls.append(call)
        else:
            self._threads.submit(self._do, step, call)
        step.waiting.add(number)
        step.clock.pause()

    def _do(self, step: _Step, call: Call) -> None:
        """In a thread: call the tool."""
        value: Any = None
        problem: str | None = None
        try:
            value = self._tools.call(call.name, call.arguments)
        except ToolError as error:
            problem = str(error)
        self._answers.append((step, call.number, value, problem))
        with self._waking:
            if self._step is step:
                os.write(self._wake, b"w")

    def _reply(self, step: _Step) -> None:
        """Send the answers that are there; the time of the program goes on when it waits for none."""
        while self._answers:
            asker, number, value, error = self._answers.popleft()
            if asker is step and number in step.waiting:
                step.waiting.discard(number)
                self.process.send({"id": number, "value": value, "error": error})
        if not step.waiting:
            step.clock.go_on()

    def _watch(self, step: _Step) -> None:
        """Interrupt a step that takes too long or prints too much, and kill one that does not heed that."""
        written = self.process.out.size + self.process.err.size
        if not step.why:
            if step.clock.left() <= 0:
                step.why = "StepTimeout", f"the step took longer than {step.timeout:g} s"
            elif written > self.limits.most_output:
                step.why = "OutputLimit", f"the step printed more than {self.limits.most_output} bytes"
            else:
                return
            step.end_of_grace = time.monotonic() + _GRACE
            self.process.signal(signal.SIGINT)
        elif time.monotonic() > step.end_of_grace:
            self.process.kill()
            self.process.gone()
            step.died = "it did not heed that it was interrupted and was killed"

    def _end(self, step: _Step) -> Execution:
        """Put together what came of it."""
        process, self._step = self.process, None
        for stream in (process.out, process.err):
            stream.drain()
        told = step.told or {}
        done = execution_of(told, process.out.text(), process.err.text())
        self.usage = Usage(
            seconds=step.clock.spent(),
            wall=step.clock.wall(),
            cpu=number_of(told.get("cpu")),
            calls=step.count,
            written=process.out.size + process.err.size,
            threads=int(number_of(told.get("threads"))),
        )
        if step.died:
            self._lose(step.died)
        else:
            process.freeze()
        return _explained(done, step)

    # How it goes on elsewhere, and ends

    def fork(self) -> Session:
        """Another session that goes on from here: with the same variables, and a copy of the folder."""
        return self._copy(self)

    def like(self, process: WorkerProcess) -> Session:
        """A session of a copy of its process, with the same tools."""
        other = Session(process, self.limits, self._threads, self._copy)
        other._tools, other._asked = self._tools, self._asked
        return other

    def _become(self, other: Session) -> None:
        """Go on as a copy, which has nothing any more."""
        self.process, other.process = other.process, self.process
        self.why_lost, other.why_lost = "", self.why_lost

    def _there(self) -> WorkerProcess:
        if self.why_lost:
            raise NotAvailable(f"the process of this episode is gone: {self.why_lost}; begin another")
        if self._step is not None:
            raise InvalidArgument("a program runs already; wait for its end")
        return self.process

    def _lose(self, why: str) -> None:
        self.why_lost = why
        self.process.kill()

    def close(self) -> None:
        """End it, and leave nothing behind."""
        if self._is_closed:
            return
        self._is_closed, self.why_lost = True, self.why_lost or "it is closed"
        with self._waking:
            self._step = None
        self.process.close()
        remove(self.process.folder)
        for descriptor in (self._sleeper, self._wake):
            os.close(descriptor)


class _Step:
    """A step under way."""

    def __init__(self, timeout: float) -> None:
        self.seq, self.timeout = secrets.randbits(48), timeout
        self.clock = Clock(timeout, _WALL * timeout)
        self.told: Message | None = None
        self.died = ""
        self.why: tuple[str, str] | None = None
        """Why it was interrupted: what that is called, and a sentence."""
        self.end_of_grace = 0.0
        self.calls: list[Call] = []
        """Those that wait for an answer, and have not been handed out."""
        self.waiting: set[int] = set()
        self.count = 0
        self.is_heard = False
        """Whether nothing more was said in the last turn."""

    @staticmethod
    def poll(descriptors: list[int], seconds: float) -> set[int]:
        """Those that have something to read, within so many seconds."""
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(max(seconds, 0.0) * 1000)}


Answer = tuple[_Step | None, int, Any, str | None]


def _explained(done: Execution, step: _Step) -> Execution:
    """The step, with what has ended it from outside."""
    if step.why is None and not step.died:
        return done
    kind, why = step.why or ("WorkerDied", "")
    lost = f"; {step.died}, and all variables are gone" if step.died else "; its variables are kept"
    said = f"{why}{lost}" if why else f"its process {step.died}, and all variables are gone"
    if step.told is not None and step.told.get("success") is True and not step.died:
        return msgspec.structs.replace(done, timed_out=kind == "StepTimeout")
    trace = done.error.rpartition("\n")[0]
    return msgspec.structs.replace(
        done,
        success=False,
        error="\n".join(filter(None, (trace, f"{kind}: {said}"))),
        error_type=kind,
        timed_out=kind == "StepTimeout",
        state_lost=bool(step.died),
    )
