"""An episode of untrusted Python: steps in a lasting namespace, with a timeout; a session may be forked."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

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
from envweave_gym.sandbox.setup import Limits
from envweave_gym.sandbox.worker_process import FRAME_BYTES, WorkerDied, WorkerProcess

MAX_SOURCE = 4 << 20
_MAX_TIMEOUT_S = 3600.0 * 24
_LONGEST_REASON = 500
_KILL_TIMEOUT_S = 5.0
_NO_REPLY = "a tool call is answered by whoever began the step, and nobody did"


class Tools(Protocol):
    """The tools of a session, such as a ``ToolRegistry``."""

    def specs(self) -> list[dict[str, Any]]:
        """Return name, signature and docstring of each tool."""
        ...

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool; return JSON, or raise :class:`ToolError`."""
        ...


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names that are bound in the namespace of an episode."""

    values: dict[str, Any] = {}
    """JSON values by name."""
    imports: tuple[str, ...] = ("math",)
    ends: dict[str, str] = {}
    """Names of the functions that end an episode: ``final`` takes a value, ``final_var`` the name of a
    variable; ``show`` lists the variables."""
    constants: tuple[str, ...] = ()
    """Those of ``values`` that are reset before every step, as functions and tools always are."""
    source: str = ""
    """A program of the host; its definitions are bound too."""
    seed: int = 0
    """The seed of the module ``random``."""


class Session:
    """An episode in a worker process, for one thread at a time; a forked process cannot use it."""

    def __init__(
        self,
        process: WorkerProcess,
        limits: Limits,
        threads: ToolThreads,
        copy: Callable[[Session], Session],
    ) -> None:
        """``threads`` run the tools; ``copy`` forks a session."""
        self.process, self.limits = process, limits
        self._threads, self._copy = threads, copy
        self._tools: Tools | None = None
        self._tool_names, self._deferred = frozenset[str](), frozenset[str]()
        self._step: Step | None = None
        self._variables: dict[str, Variable] = {}
        self.is_closed = False
        """Whether it was closed, or belongs to the process that this one was forked from."""
        self.why_lost = ""
        """Why its process is lost, if it is."""
        self.usage = Usage()
        """The cost of the last step."""
        in_forked_child(self, Session._disown)

    def _disown(self) -> None:
        self.why_lost, self.is_closed = "it belongs to the process that opened it", True

    @property
    def folder(self) -> str:
        """The working folder of its programs."""
        return self.process.folder

    def has_zygote(self) -> bool:
        """Return whether the zygote is alive; if not, a lost session was not lost by its own program."""
        return self.process.fork.has_zygote()

    def is_confined(self) -> bool:
        """Return whether Landlock confines programs to the episode's files and off the network."""
        return any(layer.startswith("landlock") for layer in self.process.layers)

    # Names

    def name(self, names: Names, tools: Tools | None = None, deferred: Collection[str] = ()) -> None:
        """Bind the names that programs find; calls of ``deferred`` tools are answered by :meth:`answer`."""
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
        """Have these tools answer the calls, under the names that :meth:`name` has bound."""
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

        After ``timeout`` seconds of its own time it is interrupted, and its variables are kept; if it goes on
        its process is killed. With ``checkpoint`` a copy from before the step then replaces it. ``snapshot``
        is the length of each variable's ``repr`` in the outcome; the values of those in ``watch`` are in it.
        """
        self.begin(code, timeout=timeout, checkpoint=checkpoint, snapshot=snapshot, watch=watch)
        return self._finish()

    def shell(
        self, command: str | Sequence[str], *, timeout: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Execution:
        """Run a command, or a line of the shell, if the profile lets programs start others.

        ``value`` is its exit code, or minus the signal that ended it, and ``success`` whether that is 0.
        After ``timeout`` seconds it is killed with its process group.
        """
        line = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not line or not all(isinstance(word, str) and "\0" not in word for word in line):
            raise InvalidArgument(f"{shown(command)} is no command; give a text, or a list of texts")
        self._start({"op": "exec", "command": line, "env": dict(env or {})}, timeout)
        return self._finish()

    def _finish(self) -> Execution:
        while not isinstance(done := self.wait(), Execution):
            for call in done:
                self.answer(call, error=_NO_REPLY)
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
        """Start a program with the arguments of :meth:`run`; :meth:`wait` returns its outcome."""
        if not isinstance(code, str):
            raise InvalidArgument(f"{shown(code)} is no program; give its text")
        if len(code) > MAX_SOURCE:
            raise InvalidArgument(f"{len(code)} characters are no program; give at most {MAX_SOURCE}")
        self._start({"op": "exec", "code": code}, timeout, checkpoint, snapshot, watch)

    def _start(
        self,
        order: Message,
        timeout: float,
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
            process.send({**order, **more})
        except WorkerDied as error:
            step.death = str(error)

    def _checkpoint(self) -> tuple[Session | None, str]:
        """Fork a copy to restore; or return why there is none, and the step runs without."""
        try:
            return self._copy(self), ""
        except (NotAvailable, WorkerDied) as error:
            return None, f"it was not copied before: {text_of(str(error), _LONGEST_REASON)}"

    def wait(self) -> Execution | list[Call]:
        """Wait for the outcome of the step, or for deferred calls.

        While the caller has all open calls to answer, the step is paused and its process frozen.
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
        """Answer a deferred call; with ``error`` it raises ``ToolError`` in the program."""
        if self._step is not None:
            self._step.replies.append(reply(call, value, error))

    def _advance(self, step: Step) -> None:
        """Send replies, enforce the limits, and handle the messages that come."""
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
        """Interrupt a step that is beyond a limit; kill its process if it goes on."""
        if step.stopped is None:
            if left <= 0:
                step.stop("StepTimeout", f"the step took longer than {step.timeout:g} s")
            else:
                step.stop("OutputLimit", f"the step printed more than {self.limits.most_output} bytes")
            self.process.signal(signal.SIGINT)
        elif left <= 0:
            self.process.kill()
            self.process.ending(_KILL_TIMEOUT_S)
            raise WorkerDied("it did not heed that it was interrupted and was killed")

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
            at_once = f"{MAX_OPEN_CALLS} of them with {MAX_OPEN_BYTES} bytes at once"
            allowed = f"a step has at most {MAX_CALLS} calls, {at_once}"
            self.answer(call, error=f"{call.name}: arguments are named, and {allowed}")
        elif call.name in self._deferred:
            step.deferred.append(call)
        else:
            self._threads.submit(partial(self._do, step, call))

    def _do(self, step: Step, call: Call) -> None:
        """In a thread: call the tool."""
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
        """Fork another session, with the same variables and a copy of the folder."""
        self._require_idle()
        try:
            return self._copy(self)
        except WorkerDied as error:
            self.why_lost = str(error)
            raise

    def with_process(self, process: WorkerProcess) -> Session:
        """Return a session of a copy of the process, with the same tools."""
        other = Session(process, self.limits, self._threads, self._copy)
        other._tools, other._tool_names, other._deferred = self._tools, self._tool_names, self._deferred
        other._variables = self._variables
        return other

    def _require_idle(self) -> WorkerProcess:
        if self.why_lost:
            raise NotAvailable(f"the process of this episode is gone: {self.why_lost}; begin another")
        if self._step is not None:
            raise InvalidArgument("a program runs already; wait() for its end, or close() the session")
        return self.process

    def close(self) -> None:
        """End the process and remove the folder; a forked process does neither."""
        if self.is_closed:
            return
        self.is_closed, self.why_lost = True, self.why_lost or "it is closed"
        step, self._step = self._step, None
        if step is not None and step.before is not None:
            step.before.close()
        self.process.close()
        remove(self.process.folder)
