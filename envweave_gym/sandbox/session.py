"""An episode of untrusted Python: steps that keep their variables, end in time, and may be forked."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.os_support.process_local import Owner
from envweave_gym.sandbox.folders import remove
from envweave_gym.sandbox.inside.bounded_values import cut
from envweave_gym.sandbox.inside.channel import Message
from envweave_gym.sandbox.process import SIZE, WorkerDied, WorkerProcess
from envweave_gym.sandbox.result import Execution, Limits, Usage, Variable
from envweave_gym.sandbox.step import AT_ONCE, BYTES_AT_ONCE, MOST_CALLS, Call, Step, explained, reply
from envweave_gym.sandbox.telling import execution_of, json_of, number_of, text_of
from envweave_gym.sandbox.threads import Threads
from envweave_gym.tools import ToolError, ToolRegistry

MOST_SOURCE = 4 << 20
_GRACE = 0.5
"""So many seconds a step that was interrupted has to end, before its process is killed."""
_LONGEST = 3600.0 * 24
_LONGEST_WHY = 500
"""So many characters of why there is no copy are told."""
_NOBODY = "a tool call is answered by whoever began the step, and nobody did"


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What a program finds when its episode begins."""

    values: dict[str, Any] = {}
    """Names for JSON values."""
    imports: tuple[str, ...] = ("math",)
    ends: dict[str, str] = {}
    """Names for what ends an episode, ``final`` of a value or ``final_var`` of a name; ``show`` shows all."""
    kept: tuple[str, ...] = ()
    """Those of ``values`` that mean the same before every step, as all other names of the host do."""
    source: str = ""
    """A program of the host; what it defines programs find."""
    seed: int = 0
    """Of the module ``random``."""


class Session:
    """One episode. Not for several threads at a time; a forked process has none."""

    def __init__(
        self, process: WorkerProcess, limits: Limits, threads: Threads, copy: Callable[[Session], Session]
    ) -> None:
        """``threads`` run the tools, and ``copy`` makes another session that goes on from here."""
        self.process, self.limits = process, limits
        self._threads, self._copy, self._owner = threads, copy, Owner()
        self._tools, self._asked = ToolRegistry(), frozenset[str]()
        self._step: Step | None = None
        self._variables: dict[str, Variable] = {}
        self._is_closed = False
        self.why_lost = ""
        """What its process ended of, where it has."""
        self.usage = Usage()
        """What the last step cost."""

    @property
    def folder(self) -> str:
        """The folder that it works in."""
        return self.process.folder

    def has_zygote(self) -> bool:
        """Whether the zygote is alive; if not, a lost session was not lost by its own program."""
        return self.process.fork.has_zygote()

    def is_confined(self) -> bool:
        """Whether Landlock keeps programs to the files of the episode and off the network."""
        return any(layer.startswith("landlock") for layer in self.process.layers)

    # What programs find

    def name(self, names: Names, tools: ToolRegistry | None = None, asked: Collection[str] = ()) -> None:
        """Say what programs find; calls of the tools in ``asked`` are answered by :meth:`answer`."""
        process = self._there()
        self._tools, self._asked = tools or ToolRegistry(), frozenset(asked)
        process.thaw()
        try:
            process.send({"op": "names", **msgspec.to_builtins(names), "tools": self._tools.specs()})
            process.await_("named")
        except WorkerDied as error:
            self.why_lost = str(error)
            raise

    def serve(self, tools: ToolRegistry) -> None:
        """Have calls answered by these tools, which programs know by what :meth:`name` has said."""
        self._tools = tools

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
        self.begin(code, timeout=timeout, checkpoint=checkpoint, snapshot=snapshot, watch=watch)
        return self._ran()

    def shell(
        self, command: str | Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Execution:
        """Run a command, or a line of the shell, where the profile lets programs start others.

        ``value`` is its exit code, or minus the signal that ended it, and ``success`` whether that is 0.
        After ``timeout`` seconds it is killed, with its process group.
        """
        line = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not line or not all(isinstance(word, str) and "\0" not in word for word in line):
            raise InvalidArgument(f"{shown(command)} is no command; give a text, or a list of texts")
        order = {"op": "exec", "command": line, "env": dict(env or {})}
        self._begin(order, timeout=timeout, checkpoint=False, snapshot=0, watch=())
        return self._ran()

    def _ran(self) -> Execution:
        while not isinstance(done := self.wait(), Execution):
            for call in done:
                self.answer(call, error=_NOBODY)
        return done

    def begin(
        self,
        code: str,
        *,
        timeout: float = 10.0,
        checkpoint: bool = False,
        snapshot: int = 0,
        watch: Sequence[str] = (),
    ) -> None:
        """Let a program run, as :meth:`run` does; :meth:`wait` tells what comes of it."""
        if not isinstance(code, str):
            raise InvalidArgument(f"{shown(code)} is no program; give its text")
        if len(code) > MOST_SOURCE:
            raise InvalidArgument(f"{len(code)} characters are no program; give at most {MOST_SOURCE}")
        order = {"op": "exec", "code": code}
        self._begin(order, timeout=timeout, checkpoint=checkpoint, snapshot=snapshot, watch=watch)

    def _begin(
        self, order: Message, *, timeout: float, checkpoint: bool, snapshot: int, watch: Sequence[str]
    ) -> None:
        process = self._there()
        if type(timeout) not in (int, float) or not 0 < timeout <= _LONGEST:
            raise InvalidArgument(f"timeout={shown(timeout)} is no number of seconds up to {_LONGEST:g}")
        before, no_copy = self._kept() if checkpoint else (None, "")
        self._step = step = Step(timeout, snapshot, before, no_copy)
        for stream in (process.out, process.err):
            stream.drain()
            stream.begin()
        process.thaw()
        told = {"seq": step.seq, "longest": self.limits.text, "snapshot": snapshot, "watch": list(watch)}
        try:
            process.send({**order, **told})
        except WorkerDied as error:
            step.died = str(error)

    def _kept(self) -> tuple[Session | None, str]:
        """A copy for the case that the step kills the process; or why the step is run without."""
        try:
            return self._copy(self), ""
        except (NotAvailable, WorkerDied) as error:
            return None, f"it was not copied before: {cut(str(error), _LONGEST_WHY)}"

    def wait(self) -> Execution | list[Call]:
        """What came of the step; or the calls that wait for :meth:`answer`, and it is frozen meanwhile."""
        step = self._step
        if step is None:
            raise InvalidArgument("no program runs")
        try:
            if step.is_held:
                self.process.thaw()
                step.release()
            while step.told is None and not step.died and not (step.calls and step.is_all_heard):
                self._turn(step)
        except WorkerDied as error:
            step.died = step.died or str(error)
        if step.told is not None or step.died:
            return self._end(step)
        calls, step.calls = step.calls, []
        if len(calls) == len(step.waiting):
            self.process.freeze()
            step.hold()
        return calls

    def answer(self, call: Call, value: Any = None, error: str | None = None) -> None:
        """Answer a call; with ``error`` it fails."""
        if self._step is not None:
            self._step.answers.append(reply(call, value, error))

    def _turn(self, step: Step) -> None:
        """Wait for what happens next, and see to it."""
        for text in step.answered():
            self.process.send_text(text)
        messages = self.process.turn(self._patience(step))
        step.is_all_heard = not messages
        for message in messages:
            self._hear(step, message)
        if step.told is None:
            self._watch(step)

    def _patience(self, step: Step) -> float:
        if step.calls:
            return 0.0
        return step.end_of_grace - time.monotonic() if step.why else step.clock.left()

    def _hear(self, step: Step, message: Message) -> None:
        event, number = message.get("ev"), message.get("id")
        if event == "result" and message.get("seq") == step.seq:
            step.told = step.told or message
        elif (
            event == "call"
            and type(number) is int
            and step.told is None
            and step.wait_for(number, message[SIZE])
        ):
            self._call(step, number, message)

    def _call(self, step: Step, number: int, message: Message) -> None:
        kwargs = json_of(message.get("kwargs"))
        call = Call(number, text_of(message.get("name")), kwargs if isinstance(kwargs, dict) else {})
        if step.why is not None:
            self.answer(call, error="the step is over")
        elif call.name not in self._tools:
            self.answer(call, error=f"there is no tool {call.name!r}")
        elif message.get("args") or step.has_too_many_calls():
            at_once = f"{AT_ONCE} of them with {BYTES_AT_ONCE} bytes at once"
            allowed = f"a step has at most {MOST_CALLS} calls, {at_once}"
            self.answer(call, error=f"{call.name}: arguments are named, and {allowed}")
        elif call.name in self._asked:
            step.calls.append(call)
        else:
            self._threads.submit(self._do, step, call)

    def _do(self, step: Step, call: Call) -> None:
        """In a thread: call the tool."""
        try:
            answer = reply(call, self._tools.call(call.name, call.arguments), None)
        except ToolError as error:
            answer = reply(call, None, str(error))
        except BaseException as error:  # noqa: BLE001 - a program waits for an answer, whatever happens
            answer = reply(call, None, f"{call.name} failed: {type(error).__name__}")
        step.answers.append(answer)
        self.process.wake()

    def _watch(self, step: Step) -> None:
        """Interrupt a step that takes too long or prints too much, and kill one that does not heed that."""
        process = self.process
        if not step.why:
            if step.clock.left() <= 0:
                step.why = "StepTimeout", f"the step took longer than {step.timeout:g} s"
            elif process.out.size + process.err.size > self.limits.most_output:
                step.why = "OutputLimit", f"the step printed more than {self.limits.most_output} bytes"
            else:
                return
            step.end_of_grace = time.monotonic() + _GRACE
            process.signal(signal.SIGINT)
            step.calls.clear()
            for number in list(step.waiting):
                step.answers.append(reply(Call(number, "", {}), None, "the step is over"))
        elif time.monotonic() > step.end_of_grace:
            process.kill()
            process.gone()
            step.died = "it did not heed that it was interrupted and was killed"

    def _end(self, step: Step) -> Execution:
        """Put together what came of it."""
        process, self._step = self.process, None
        for stream in (process.out, process.err):
            stream.drain()
        told = step.told or {}
        done = execution_of(told, process.out.text(), process.err.text(), self.limits.text, step.snapshot)
        done = explained(done, step, self._variables)
        self._variables = done.variables
        self.usage = Usage(
            seconds=step.clock.spent(),
            wall=step.clock.wall(),
            cpu=number_of(told.get("cpu")),
            calls=step.count,
            written=process.out.size + process.err.size,
            threads=int(number_of(told.get("threads"))),
        )
        self._settle(step)
        return done

    def _settle(self, step: Step) -> None:
        """Have the process that the next step runs in: this one, its copy, or none."""
        if not step.died:
            self.process.freeze()
        elif step.before is not None:
            self.process, step.before.process = step.before.process, self.process
        else:
            self.why_lost = step.died
            self.process.kill()
        if step.before is not None:
            step.before.close()

    # How it goes on elsewhere, and ends

    def fork(self) -> Session:
        """Another session that goes on from here: with the same variables, and a copy of the folder."""
        self._there()
        try:
            return self._copy(self)
        except WorkerDied as error:
            self.why_lost = str(error)
            raise

    def like(self, process: WorkerProcess) -> Session:
        """A session of a copy of its process, with the same tools."""
        other = Session(process, self.limits, self._threads, self._copy)
        other._tools, other._asked, other._variables = self._tools, self._asked, self._variables
        return other

    def _there(self) -> WorkerProcess:
        if not self._owner.is_here():
            raise NotAvailable("an episode belongs to the process that opened it; open another here")
        if self.why_lost:
            raise NotAvailable(f"the process of this episode is gone: {self.why_lost}; begin another")
        if self._step is not None:
            raise InvalidArgument("a program runs already; wait() for its end, or close() the session")
        return self.process

    def close(self) -> None:
        """End it, and leave nothing behind; a forked process only lets go of it."""
        if self._is_closed:
            return
        self._is_closed, self.why_lost = True, self.why_lost or "it is closed"
        step, self._step = self._step, None
        if step is not None and step.before is not None:
            step.before.close()
        if not self._owner.is_here():
            self.process.let_go()
            return
        self.process.close()
        remove(self.process.folder)
