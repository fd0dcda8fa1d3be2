"""The worker: runs one episode of untrusted Python in a confined process.

It is forked from the zygote, confines itself, and then follows the orders of its host: run a step, bind
names, fork. The program shares its process and may forge any report; that changes only what the program
itself gets to see.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from . import confinement
from .bounded_values import as_json, cut, shown, type_name, weight
from .channel import Channel, Message, ToolError
from .kernel import adopt_orphans, end_with_parent, exit_code
from .program import FinalAnswer, Interrupted, command, run, trace_of
from .tool_functions import function_of, own_function

CONTROL = 3
"""The descriptor of the channel."""
_STACK_BYTES = 2 << 20
"""Bytes of a thread's stack, all of which count as memory."""
_MAX_VARIABLES = 300
"""The most variables in a report."""
_LONGEST_TRACE = 20_000
_LARGEST_JSON, _LARGEST_TEXT = 1 << 20, 4 << 20
_DESCRIPTORS = 3
"""How many descriptors every process is given; those of a ruleset and of a cgroup may follow."""
_ADOPTION_S = 5.0
"""How long the zygote may take to become the parent of a copy."""


def prepare(warm: list[str]) -> Callable[[list[int]], None]:
    """In the zygote: import the ``warm`` modules; return the function that each worker runs."""
    for module in warm:
        try:
            __import__(module)
        except Exception as error:
            raise ImportError(f"warm={module!r} cannot be imported: {error}") from error
    sys.path.insert(0, "")  # what a program writes into its folder it can import
    threading.stack_size(_STACK_BYTES)
    parent = os.getpid()
    return lambda descriptors: _run_worker(descriptors, parent)


def _run_worker(descriptors: list[int], parent: int) -> None:
    entered = enter_cgroup(descriptors[_DESCRIPTORS:])
    channel = open_channel(descriptors[:_DESCRIPTORS])
    with suppress(EOFError):
        begin = channel.next_order()
        os.setsid()
        use_folder(begin["folder"])
        layers, fork_listener = confinement.apply(begin["confinement"], begin["folder"], parent)
        worker = Worker(channel, begin, parent)
        hello = {"ev": "hello", "layers": [*entered, *layers]}
        channel.send_hello(hello, [] if fork_listener is None else [fork_listener])
        worker.work()


def enter_cgroup(groups: list[int]) -> list[str]:
    """Move this process into the memory cgroup given by descriptor, if any; return the layers that this adds.

    Where the kernel refuses, the other limits remain.
    """
    with suppress(OSError):
        for group in groups:
            os.write(group, b"0")
        return ["memory cgroup" for _ in groups]
    return []


def open_channel(descriptors: list[int]) -> Channel:
    """Keep the channel and the output open, and close every other descriptor."""
    control, out, err = descriptors  # all above 3, as the lower numbers were in use when they were received
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), out, err, control)):
        if source != target:
            os.dup2(source, target)
    os.set_inheritable(CONTROL, False)
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    return Channel(CONTROL)


def use_folder(folder: str) -> None:
    """Make this the working, home and temporary folder."""
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)


def _reopened(stream: TextIO, descriptor: int) -> TextIO:
    """Return the stream, or a new one if a program closed or detached it."""
    try:
        return _stream(descriptor) if stream.closed else stream
    except ValueError:
        return _stream(descriptor)


class Worker:
    """Executes the orders of the host."""

    def __init__(self, channel: Channel, begin: Message, parent: int) -> None:
        self.channel = channel
        self._confinement, self._parent = begin["confinement"], parent
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        self._names = vars(main)
        self._host_names: dict[str, Any] = {}
        """The names that are reset to these values before every step."""
        self._step, self._folder = 0, begin["folder"]
        self._rulesets = 0
        """The number of rulesets that the next copy is given."""
        self._final: Message | None = None
        self._is_running = self._is_interrupted = self._is_at_memory_limit = False
        self._unfinished_reprs: dict[str, int] = {}
        """Variables whose ``repr`` is under way, or was when a step timed out."""
        self._orders: dict[str, Callable[[Message], None]] = {
            "exec": self.step,
            "names": self.name,
            "fork": self.fork,
        }
        # line buffering: the output of a step that is killed arrives up to its last line
        self._out, self._err = map(_stream, (1, 2))
        self._own = frozenset(self._names) | {"_", "__builtins__"}

    def work(self) -> None:
        """Execute orders until the host closes the channel."""
        while True:
            order = self.channel.next_order()
            self._orders[order["op"]](order)

    # Names

    def name(self, order: Message) -> None:
        """Bind values, modules, tools and the functions that end an episode."""
        try:
            self._bind(order)
        except Exception as error:  # noqa: BLE001 - a module or the host's own program may raise anything
            self.channel.send(
                {"ev": "failed", "why": f"no episode can begin: {type(error).__name__}: {error}"}
            )
        else:
            self.channel.send({"ev": "named"})

    def _bind(self, order: Message) -> None:
        random.seed(order["seed"])
        for module in order["imports"]:
            self._names[module] = __import__(module)
        self._names.update(order["values"])
        ends: dict[str, Any] = {
            "final": self._answer_value,
            "final_var": self._answer_variable,
            "show": self._list_variables,
        }
        given = {name: own_function(name, ends[kind]) for name, kind in order["ends"].items()}
        given.update({spec["name"]: function_of(spec, self._call) for spec in order["tools"]})
        if order["tools"]:
            given["ToolError"] = ToolError
        given.update({name: self._names[name] for name in order["constants"]})
        given.update(self._definitions_of(order["source"]))
        for name in self._host_names.keys() - given.keys():
            self._names.pop(name, None)
        self._host_names = given
        self._names.update(given)
        self._own |= {*given, *order["imports"], *order["values"]}

    def _definitions_of(self, source: str) -> dict[str, Any]:
        """Run a program of the host; return what it defines."""
        names: dict[str, Any] = {"__name__": "__main__"}
        if source:
            run(source, "<given>", names)
        return {name: value for name, value in names.items() if not name.startswith("_")}

    def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool; an interrupt of the main thread waits for its reply."""
        if threading.current_thread() is not threading.main_thread():
            return self.channel.call(name, args, kwargs)
        was_running, self._is_running = self._is_running, False
        try:
            return self.channel.call(name, args, kwargs)
        finally:
            self._is_running = was_running
            if was_running and self._is_interrupted:
                raise Interrupted

    def _answer_value(self, value: Any) -> None:
        """Give the last answer, which ends the episode at once."""
        try:
            as_is: Any = [as_json(value, _LARGEST_JSON)]
        except ValueError:
            as_is = None
        text = str(value)
        if weight(text) > _LARGEST_TEXT:
            most = f"the {_LARGEST_TEXT >> 20} MB that it may have"
            raise ValueError(f"an answer of {len(text)} characters has more than {most}")
        self._final = {"text": text, "json": as_is}
        raise FinalAnswer

    def _answer_variable(self, name: str) -> None:
        """Give the value of the variable with this name as the last answer."""
        if not isinstance(name, str):
            self._answer_value(name)
        elif name not in self._names:
            there = ", ".join(self._variables(0)) or "none"
            raise NameError(f"there is no variable {name!r}; there are {there}")
        else:
            self._answer_value(self._names[name])

    def _list_variables(self) -> str:
        """Show which variables there are."""
        lines = [f"{name}: {kind}" for name, (kind, _) in self._variables(0).items()]
        return "\n".join(lines) or "there are no variables"

    # A step

    def step(self, order: Message) -> None:
        """Run a program and send its report."""
        self._step += 1
        self._final = None
        sys.path_importer_cache.pop(self._folder, None)  # modules that the last step has written are found
        if self._is_at_memory_limit:
            self._limit_memory(self._confinement["memory"])
        self._out, self._err = _reopened(self._out, 1), _reopened(self._err, 2)
        sys.stdout, sys.stderr = self._out, self._err
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._is_interrupted = False  # that of the last step may have come only now
        report = self._report(order)
        report["watched"] = self._watched(order["watch"]) if self._final is None else {}
        self._names.update(self._host_names)
        self.channel.send({"ev": "result", "seq": order["seq"], "final": self._final, **report})

    def _report(self, order: Message) -> Message:
        """Run a program and describe its outcome, which runs more of it: ``repr`` of values and errors."""
        report: Message = {"success": False, "shown": "", "json": None, "error": "", "error_type": ""}
        try:
            self._is_running = True
            try:
                self._run(order, report)
            except Interrupted:
                raise
            except BaseException as error:  # noqa: BLE001 - reported, whatever it is
                self._raise_memory_limit(error)
                report.update(_failure(error))
            report["variables"] = self._variables(order["snapshot"])
            for stream in (self._out, self._err):
                with suppress(OSError, ValueError):  # a program may have closed it
                    stream.flush()
            self._is_running = False
        except Interrupted as error:
            self._is_running = False
            error.__context__ = None  # formatting the error that was under way may never end
            report.update(_failure(error))
            report["variables"] = self._variables(0)
        return report

    def _run(self, order: Message, report: Message) -> None:
        with suppress(FinalAnswer):
            if "command" in order:
                self._command(order, report)
                return
            value = run(order["code"], f"<step {self._step}>", self._names)
            if value is not None:
                report["shown"] = shown(value, order["longest"])
                with suppress(ValueError):
                    report["json"] = [as_json(value, _LARGEST_JSON)]
        report["success"] = True

    def _command(self, order: Message, report: Message) -> None:
        code = command(order["command"], order["env"])
        report.update(success=code == 0, shown=str(code), json=[code])

    def _interrupt(self, *_: Any) -> None:
        """Handle SIGINT: interrupt the program, unless it waits for the host."""
        self._is_interrupted = True
        if self._is_running:
            raise Interrupted

    def _raise_memory_limit(self, error: BaseException) -> None:
        """Raise the memory limit to its hard maximum, so that a ``MemoryError`` can be reported."""
        if isinstance(error, MemoryError):
            self._is_at_memory_limit = True
            self._limit_memory(resource.getrlimit(resource.RLIMIT_DATA)[1])

    def _limit_memory(self, most: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (min(most, hard), hard))

    def _variables(self, longest: int) -> dict[str, tuple[str, str]]:
        """Return the class of each variable, and its ``repr`` of at most this length."""
        names = [name for name in self._names if name not in self._own and not name.startswith("_")]
        report: dict[str, tuple[str, str]] = {}
        for name in names[:_MAX_VARIABLES]:
            value = self._names[name]
            if not isinstance(value, types.ModuleType):
                report[name] = type_name(value), self._shown(name, value, longest) if longest else ""
        return report

    def _shown(self, name: str, value: Any, longest: int) -> str:
        """Return the ``repr`` of a variable, or nothing if it used up the time of an earlier step."""
        if self._unfinished_reprs.get(name) == id(value):
            return ""
        self._unfinished_reprs[name] = id(value)
        try:
            text = shown(value, longest)
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - no way of showing itself ends the step
            text = f"<{type_name(value)} whose repr raises {type_name(error)}>"
        del self._unfinished_reprs[name]
        return text

    def _watched(self, names: list[str]) -> dict[str, Any]:
        """Return the watched variables that are JSON."""
        report: dict[str, Any] = {}
        for name in names:
            with suppress(ValueError, KeyError):
                report[name] = as_json(self._names[name], _LARGEST_TEXT)
        return report

    # Forks

    def fork(self, order: Message) -> None:
        """Fork a copy of this process, as another child of the zygote."""
        self.channel.send({"ev": "ready"})
        self._rulesets = order["rulesets"]
        descriptors = self.channel.receive_descriptors(_DESCRIPTORS + self._rulesets + order["groups"])
        report: Message = {"ev": "forked"}
        is_copy = False
        try:
            is_copy = self._fork_copy()
        except OSError as error:
            report = {"ev": "failed", "why": f"the process of the episode cannot be forked: {error.strerror}"}
        if is_copy:
            self._become_copy(descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        self.channel.send(report)

    def _fork_copy(self) -> bool:
        """Fork twice, so that the copy is no child of this process; return True in the copy."""
        adopt_orphans(False)
        try:
            between = os.fork()
            if between == 0:
                try:
                    is_copy = os.fork() == 0
                except OSError:
                    os._exit(errno.EAGAIN)
                if is_copy:
                    return True
                os._exit(0)
            code = exit_code(os.waitpid(between, 0)[1])
            if code:
                raise OSError(code, os.strerror(code))
        finally:
            adopt_orphans()
        return False

    def _become_copy(self, descriptors: list[int]) -> None:
        # The process between exits, and the kernel makes the zygote the parent. Only then can the signal be set
        # that ends this process with its parent.
        deadline = time.monotonic() + _ADOPTION_S
        while os.getppid() != self._parent:
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.0002)
        os.setsid()
        end_with_parent(signal.SIGKILL, self._parent)
        self.channel.detach()
        rest = _DESCRIPTORS + self._rulesets
        why = _confined(descriptors[_DESCRIPTORS:rest])
        enter_cgroup(descriptors[rest:])
        self.channel = open_channel(descriptors[:_DESCRIPTORS])
        order = self.channel.next_order()
        self._folder = order["folder"]
        if not why:
            why = _entered(self._folder)
        if why:
            self.channel.send({"ev": "failed", "why": why})
            os._exit(1)
        random.seed(order["seed"])
        self.channel.send({"ev": "hello", "layers": []})


def _failure(error: BaseException) -> Message:
    return {"success": False, "error_type": type_name(error), "error": cut(trace_of(error), _LONGEST_TRACE)}


def _confined(rulesets: list[int]) -> str:
    """Apply the rulesets of a copy to this process; return why it failed, or nothing."""
    try:
        for ruleset in rulesets:
            confinement.restrict_copy(ruleset)
    except OSError as error:
        return str(error.strerror)
    return ""


def _entered(folder: str) -> str:
    """Work in the folder of a copy; return why it failed, or nothing."""
    try:
        use_folder(folder)
    except OSError as error:
        return str(error.strerror)
    return ""
