"""The sandbox session of one episode: runs untrusted programs in a namespace that persists from step to step.

A step is the run of one program, with a timeout. A session can be forked, which copies its variables and files.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypedDict, Unpack

import msgspec

from envweave_gym.core.faults import InvalidArgument, NotAvailable, ToolError, shown
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.sandbox.execution import (
    MAX_CALLS,
    MAX_OPEN_BYTES,
    MAX_OPEN_CALLS,
    Call,
    Execution,
    Step,
    ToolThreads,
    Usage,
    Variable,
    execution_from,
    json_of,
    reply,
    text_of,
)
from envweave_gym.sandbox.folders import remove
from envweave_gym.sandbox.inside.channel import Message
from envweave_gym.sandbox.limits import Limits
from envweave_gym.sandbox.worker_process import FRAME_BYTES, WorkerDied, WorkerProcess

MAX_SOURCE = 4 << 20
"""Limit of a program's length in characters."""
_MAX_TIMEOUT_S = 3600.0 * 24
_MAX_REASON_CHARS = 500
_KILL_TIMEOUT_S = 5.0
_NO_REPLY = "the caller of the step must answer this tool call, and did not"


class Tools(Protocol):
    """The functions that the programs of an episode may call: their descriptions, and a way to call one by name.

    A ``ToolRegistry`` is one.
    """

    def specs(self) -> list[dict[str, Any]]:
        """Return the name, signature and docstring of each tool."""
        ...

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool and return its result as a JSON value, or raise :class:`ToolError`."""
        ...


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names that are bound for the programs of an episode: values, modules, tools and functions that end it."""

    values: dict[str, Any] = {}
    """The JSON values that are bound, by name."""
    imports: tuple[str, ...] = ("math",)
    """The names of modules that are imported and bound."""
    ends: dict[str, str] = {}
    """The kinds of the functions that are bound, by name.

    ``final`` ends the episode with a value, ``final_var`` with the variable of a name; ``show`` lists variables."""
    constants: tuple[str, ...] = ()
    """The names in ``values`` that are bound again before every step, as functions and tools always are."""
    source: str = ""
    """A trusted program that runs first and whose definitions are bound."""
    seed: int = 0
    """The seed of the module ``random``."""


class StepOptions(TypedDict, total=False):
    """The options of running one program, see :meth:`Session.run`."""

    timeout: float
    """Seconds of the program's own time, 10 by default. Then it is interrupted, and its variables are retained; if
    it does not stop, its process is killed."""
    checkpoint: bool
    """Whether to copy the process before the step; if the step loses the process, the copy takes its place."""
    snapshot: int
    """Characters of each variable's ``repr`` in the outcome; 0, the default, leaves them out."""
    watch: Sequence[str]
    """The variables whose JSON values are in the outcome."""


class Session:
    """One episode of programs in one worker process; for one thread at a time, and not in forked processes."""

    def __init__(
        self,
        process: WorkerProcess,
        limits: Limits,
        threads: ToolThreads,
        copy: Callable[[Session], Session],
    ) -> None:
        """Use a worker process that has started.

        ``threads`` run the tools, and ``copy(session)`` forks a session for :meth:`fork`.
        """
        self.process, self.limits = process, limits
        self._threads, self._copy = threads, copy
        self._tools: Tools | None = None
        self._tool_names, self._deferred = frozenset[str](), frozenset[str]()
        self._step: Step | None = None
        self._variables: dict[str, Variable] = {}
        self.is_closed = False
        """Whether the session was closed, or is the copy that a forked process got of its parent's session."""
        self.why_lost = ""
        """The reason why the worker process is lost or cannot be used; empty while it can."""
        self.usage = Usage()
        """The cost of the last step."""
        in_forked_child(self, Session._disown)

    def _disown(self) -> None:
        self.why_lost, self.is_closed = "it belongs to the process that opened it", True

    @property
    def folder(self) -> str:
        """The working folder of the episode's programs."""
        return self.process.folder

    def has_zygote(self) -> bool:
        """Return whether the zygote is alive; if not, its death has ended the session, and not the program."""
        return self.process.fork.has_zygote()

    def is_confined(self) -> bool:
        """Return whether Landlock is in force, which keeps programs from files of others and from the network."""
        return any(layer.startswith("landlock") for layer in self.process.layers)

    # Names

    def name(self, names: Names, tools: Tools | None = None, deferred: Collection[str] = ()) -> None:
        """Bind names and tools in the namespace of the programs.

        Calls of the tools in ``deferred`` are returned by :meth:`wait`, and the caller answers them with
        :meth:`answer`. Raise :class:`WorkerDied` if the worker ends meanwhile.
        """
        process = self._require_idle()
        specs = tools.specs() if tools is not None else []
        self._tools, self._deferred = tools, frozenset(deferred)
        self._tool_names = frozenset(spec["name"] for spec in specs)
        process.resume()
        try:
            process.send({"op": "names", **msgspec.to_builtins(names), "tools": specs})
            process.await_reply("named")
        except WorkerDied as error:
            self.why_lost = str(error)
            raise

    def use_tools(self, tools: Tools) -> None:
        """Replace the object that answers tool calls; the bound names stay those that :meth:`name` has bound."""
        self._tools = tools

    # Steps

    def run(self, code: str, **options: Unpack[StepOptions]) -> Execution:
        """Run a program to its end and return the outcome."""
        self.begin(code, **options)
        return self._finish()

    def shell(
        self, command: str | Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Execution:
        """Run a command, given as a list of words or as a shell line; needs the profile ``shell``.

        In the outcome, ``value`` is the exit code, or minus the number of the signal that ended the command.
        ``success`` is true for exit code 0. After ``timeout`` seconds the command's process group is killed.
        """
        line = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not line or not all(isinstance(word, str) and "\0" not in word for word in line):
            raise InvalidArgument(f"{shown(command)} is no command; give a string, or a list of strings")
        self._start({"op": "exec", "command": line, "env": dict(env or {})}, timeout=timeout)
        return self._finish()

    def _finish(self) -> Execution:
        while not isinstance(done := self.wait(), Execution):
            for call in done:
                self.answer(call, error=_NO_REPLY)
        return done

    def begin(self, code: str, **options: Unpack[StepOptions]) -> None:
        """Start a program; :meth:`wait` returns its outcome."""
        if not isinstance(code, str):
            raise InvalidArgument(f"{shown(code)} is no program; give its source as a string")
        if len(code) > MAX_SOURCE:
            raise InvalidArgument(
                f"a program of {len(code)} characters is too long; give at most {MAX_SOURCE}"
            )
        self._start({"op": "exec", "code": code}, **options)

    def _start(
        self,
        message: Message,
        *,
        timeout: float = 10.0,
        checkpoint: bool = False,
        snapshot: int = 0,
        watch: Sequence[str] = (),
    ) -> None:
        process = self._require_idle()
        if type(timeout) not in (int, float) or not 0 < timeout <= _MAX_TIMEOUT_S:
            raise InvalidArgument(
                f"timeout={shown(timeout)} is no number of seconds up to {_MAX_TIMEOUT_S:g}"
            )
        before, no_copy = self._checkpoint() if checkpoint else (None, "")
        self._step = step = Step(timeout, snapshot, before, no_copy)
        process.out.restart()
        process.err.restart()
        process.resume()
        more = {"seq": step.seq, "longest": self.limits.text, "snapshot": snapshot, "watch": list(watch)}
        try:
            process.send({**message, **more})
        except WorkerDied as error:
            step.death = str(error)

    def _checkpoint(self) -> tuple[Session | None, str]:
        """Fork the session, so that it can be restored; return the copy and ``""``, or ``None`` and why that failed."""
        try:
            return self._copy(self), ""
        except (NotAvailable, WorkerDied) as error:
            return None, f"it was not copied before: {text_of(str(error), _MAX_REASON_CHARS)}"

    def wait(self) -> Execution | list[Call]:
        """Wait for the step's end and return its outcome, or return the deferred tool calls made before that.

        If all open calls are deferred ones, the step is paused and its process frozen until the next ``wait``.
        """
        step = self._step
        if step is None:
            raise InvalidArgument("no program runs")
        try:
            if step.unpause():
                self.process.resume()
            while step.report is None and not step.death and not (step.deferred and step.is_drained):
                self._advance(step)
        except WorkerDied as error:
            step.death = step.death or str(error)
        if step.report is not None or step.death:
            return self._end(step)
        calls, step.deferred = step.deferred, []
        if len(calls) == len(step.open_calls):
            self.process.freeze()
            step.pause()
        return calls

    def answer(self, call: Call, value: Any = None, error: str | None = None) -> None:
        """Answer a call that :meth:`wait` has returned, with a JSON value, or with the text of a ``ToolError``."""
        if self._step is not None:
            self._step.replies.append(reply(call, value, error))

    def _advance(self, step: Step) -> None:
        """Do one round of work for a running step: send replies, enforce limits, wait for messages and handle them."""
        process = self.process
        if step.replies:
            for text in step.take_replies():
                process.send(text)
        left = step.time_left()
        printed = process.out.size + process.err.size
        if left <= 0 or (printed > self.limits.most_output and step.stopped is None):
            self._stop(step, left)
            left = 0.0
        messages = process.receive(0.0 if step.deferred else left)
        step.is_drained = not messages
        for message in messages:
            event, number = message.get("ev"), message.get("id")
            if event == "result" and message.get("seq") == step.seq:
                step.report = step.report or message
            elif event == "call" and type(number) is int and step.report is None:
                self._call(step, number, message)

    def _stop(self, step: Step, left: float) -> None:
        """Interrupt a step that exceeds its time or its output; ``left`` is its time left in seconds.

        If it was interrupted before and its period of grace is over too, kill the process and raise
        :class:`WorkerDied`.
        """
        if step.stopped is None:
            if left <= 0:
                step.stop("StepTimeout", f"the step took longer than {step.timeout:g} s")
            else:
                step.stop("OutputLimit", f"the step printed more than {self.limits.most_output} bytes")
            self.process.signal(signal.SIGINT)
        elif left <= 0:
            self.process.kill()
            self.process.ending(_KILL_TIMEOUT_S)
            raise WorkerDied("it went on after the interrupt and was killed")

    def _call(self, step: Step, number: int, message: Message) -> None:
        if not step.open_call(number, message[FRAME_BYTES]):
            return
        kwargs = json_of(message.get("kwargs"))
        call = Call(number, text_of(message.get("name")), kwargs if isinstance(kwargs, dict) else {})
        if step.stopped is not None:
            self.answer(call, error="the step is over")
        elif call.name not in self._tool_names:
            self.answer(call, error=f"there is no tool {call.name!r}")
        elif message.get("args") or step.exceeds_limits():
            at_once = f"at most {MAX_OPEN_CALLS} with {MAX_OPEN_BYTES} bytes at the same time"
            allowed = f"a step makes at most {MAX_CALLS} calls, {at_once}"
            self.answer(call, error=f"{call.name}: give arguments by keyword; {allowed}")
        elif call.name in self._deferred:
            step.deferred.append(call)
        else:
            self._threads.submit(partial(self._do, step, call))

    def _do(self, step: Step, call: Call) -> None:
        """Call the tool that ``call`` names and queue its reply; runs in a thread of ``ToolThreads``."""
        try:
            assert self._tools is not None
            answer = reply(call, self._tools.call(call.name, call.arguments), None)
        except ToolError as error:
            answer = reply(call, None, str(error))
        except BaseException as error:  # noqa: BLE001 - the program waits for a reply, whatever happens
            answer = reply(call, None, f"{call.name} failed: {type(error).__name__}")
        step.replies.append(answer)
        self.process.wake()

    def _end(self, step: Step) -> Execution:
        process, report, self._step = self.process, step.report or {}, None
        # text() reads the pipes once more: the worker flushes its output before it sends the report
        out, err = process.out.text(), process.err.text()
        done = execution_from(report, out, err, self.limits.text, step.snapshot)
        if step.stopped is not None or step.death:
            done = step.explain(done, self._variables)
        self._variables = done.variables
        seconds, wall = step.times()
        self.usage = Usage(
            seconds=seconds,
            wall=wall,
            calls=step.call_count,
            written=process.out.size + process.err.size,
        )
        if not step.death:
            process.freeze()
        elif step.before is not None:
            self.process, step.before.process = step.before.process, process
        else:
            self.why_lost = step.death
            process.kill()
        if step.before is not None:
            step.before.close()
        return done

    # Copies and end

    def fork(self) -> Session:
        """Return a copy of the session, with the same variables in a forked process and a copy of the folder."""
        self._require_idle()
        try:
            return self._copy(self)
        except WorkerDied as error:
            self.why_lost = str(error)
            raise

    def with_process(self, process: WorkerProcess) -> Session:
        """Return a session with the same tools, whose process is ``process``, a fork of this session's process."""
        other = Session(process, self.limits, self._threads, self._copy)
        other._tools, other._tool_names, other._deferred = self._tools, self._tool_names, self._deferred
        other._variables = self._variables
        return other

    def _require_idle(self) -> WorkerProcess:
        if self.why_lost:
            raise NotAvailable(f"the process of this episode is gone: {self.why_lost}; begin another episode")
        if self._step is not None:
            raise InvalidArgument("a program runs already; wait() for its end, or close() the session")
        return self.process

    def close(self) -> None:
        """End the worker process and remove the episode's folder; do nothing in a forked process."""
        if self.is_closed:
            return
        self.is_closed, self.why_lost = True, self.why_lost or "it is closed"
        step, self._step = self._step, None
        if step is not None and step.before is not None:
            step.before.close()
        self.process.close()
        remove(self.process.folder)
