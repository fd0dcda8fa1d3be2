"""The worker: a confined process that runs the programs of one episode.

It is forked from the zygote, confines itself, and then executes the commands of its host process: run a step, bind
names, fork. The programs share the worker's process and may forge its reports. A forged report harms no other
episode: it changes only the outcome of the program's own step.
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
"""Number of the descriptor that connects a worker with its host."""
_STACK_BYTES = 2 << 20
"""Size of a thread's stack in bytes; all of it counts against the memory limit."""
_MAX_VARIABLES = 300
"""Limit of the variables in a report."""
_MAX_TRACE_CHARS = 20_000
_MAX_JSON_BYTES, _MAX_TEXT_BYTES = 1 << 20, 4 << 20
_DESCRIPTORS = 3
"""Number of descriptors that every worker gets: channel, ``stdout``, ``stderr``.

Those of a Landlock ruleset and of a cgroup may follow."""
_ADOPTION_TIMEOUT_S = 5.0
"""Seconds that a copy waits for the zygote to become its parent."""


def prepare(warm: list[str]) -> Callable[[list[int]], None]:
    """Import the ``warm`` modules; return the main function of a worker, which takes its list of descriptors.

    The zygote calls this once, so that the workers forked from it share the imported modules.
    """
    for module in warm:
        try:
            __import__(module)
        except Exception as error:
            raise ImportError(f"warm={module!r} cannot be imported: {error}") from error
    sys.path.insert(0, "")  # so that programs can import modules that they write into their folder
    threading.stack_size(_STACK_BYTES)
    parent = os.getpid()
    return lambda descriptors: _run_worker(descriptors, parent)


def _run_worker(descriptors: list[int], parent: int) -> None:
    entered = enter_cgroup(descriptors[_DESCRIPTORS:])
    channel = open_channel(descriptors[:_DESCRIPTORS])
    with suppress(EOFError):
        begin = channel.next_command()
        os.setsid()
        use_folder(begin["folder"])
        layers, fork_listener = confinement.apply(begin["confinement"], begin["folder"], parent)
        worker = Worker(channel, begin, parent)
        hello = {"ev": "hello", "layers": [*entered, *layers]}
        channel.send_hello(hello, [] if fork_listener is None else [fork_listener])
        worker.work()


def enter_cgroup(groups: list[int]) -> list[str]:
    """Move this process into its memory cgroup, if the list contains a descriptor for it.

    Return the names of the layers that this adds: none if the kernel refuses, as the other limits remain.
    """
    with suppress(OSError):
        for group in groups:
            os.write(group, b"0")
        return ["memory cgroup" for _ in groups]
    return []


def open_channel(descriptors: list[int]) -> Channel:
    """Give the standard streams and the channel the descriptors 0 to 3, close all others, and return the channel."""
    control, out, err = descriptors  # all above 3, as the lower numbers were in use when they were received
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), out, err, control)):
        if source != target:
            os.dup2(source, target)
    os.set_inheritable(CONTROL, False)
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    return Channel(CONTROL)


def use_folder(folder: str) -> None:
    """Make a folder the working, home and temporary folder of this process."""
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
    """Executes the commands that the host process sends as messages."""

    def __init__(self, channel: Channel, begin: Message, parent: int) -> None:
        self.channel = channel
        self._confinement, self._parent = begin["confinement"], parent
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        self._names = vars(main)
        self._host_names: dict[str, Any] = {}
        """The names and values that are bound again before every step."""
        self._step, self._folder = 0, begin["folder"]
        self._rulesets = 0
        """The number of Landlock rulesets that the next copy gets: 0 or 1."""
        self._final: Message | None = None
        self._is_running = self._is_interrupted = self._is_at_memory_limit = False
        self._unfinished_reprs: dict[str, int] = {}
        """The ids of values whose ``repr`` is running or was interrupted by a timeout, by variable name."""
        self._commands: dict[str, Callable[[Message], None]] = {
            "exec": self.step,
            "names": self.name,
            "fork": self.fork,
        }
        # line buffering: if a step is killed, its output has arrived up to the last full line
        self._out, self._err = map(_stream, (1, 2))
        self._own = frozenset(self._names) | {"_", "__builtins__"}

    def work(self) -> None:
        """Execute commands until the host process closes the channel, which raises ``EOFError``."""
        while True:
            message = self.channel.next_command()
            self._commands[message["op"]](message)

    # Names

    def name(self, message: Message) -> None:
        """Bind values, modules, tools and the functions that end an episode for the programs; report the result."""
        try:
            self._bind(message)
        except Exception as error:  # noqa: BLE001 - a module or the host's own program may raise anything
            self.channel.send(
                {"ev": "failed", "why": f"no episode can begin: {type(error).__name__}: {error}"}
            )
        else:
            self.channel.send({"ev": "named"})

    def _bind(self, message: Message) -> None:
        random.seed(message["seed"])
        for module in message["imports"]:
            self._names[module] = __import__(module)
        self._names.update(message["values"])
        ends: dict[str, Any] = {
            "final": self._answer_value,
            "final_var": self._answer_variable,
            "show": self._list_variables,
        }
        given = {name: own_function(name, ends[kind]) for name, kind in message["ends"].items()}
        given.update({spec["name"]: function_of(spec, self._call) for spec in message["tools"]})
        if message["tools"]:
            given["ToolError"] = ToolError
        given.update({name: self._names[name] for name in message["constants"]})
        given.update(self._definitions_of(message["source"]))
        for name in self._host_names.keys() - given.keys():
            self._names.pop(name, None)
        self._host_names = given
        self._names.update(given)
        self._own |= {*given, *message["imports"], *message["values"]}

    def _definitions_of(self, source: str) -> dict[str, Any]:
        """Run a program of the host process in a namespace of its own; return the public names that it defines."""
        names: dict[str, Any] = {"__name__": "__main__"}
        if source:
            run(source, "<given>", names)
        return {name: value for name, value in names.items() if not name.startswith("_")}

    def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool; an interrupt that comes meanwhile is raised after the reply."""
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
        """Give ``value`` as the final answer, which ends the episode at once."""
        # Programs read this docstring with help(). The exception ends the program; nothing after it runs.
        try:
            as_is: Any = [as_json(value, _MAX_JSON_BYTES)]
        except ValueError:
            as_is = None
        text = str(value)
        if weight(text) > _MAX_TEXT_BYTES:
            most = f"the {_MAX_TEXT_BYTES >> 20} MB that it may have"
            raise ValueError(f"an answer of {len(text)} characters has more than {most}")
        self._final = {"text": text, "json": as_is}
        raise FinalAnswer

    def _answer_variable(self, name: str) -> None:
        """Give the value of the variable with this name as the final answer, which ends the episode at once."""
        if not isinstance(name, str):
            self._answer_value(name)
        elif name not in self._names:
            there = ", ".join(self._variables(0)) or "none"
            raise NameError(f"there is no variable {name!r}; there are {there}")
        else:
            self._answer_value(self._names[name])

    def _list_variables(self) -> str:
        """Return the names and types of the variables as text."""
        lines = [f"{name}: {kind}" for name, (kind, _) in self._variables(0).items()]
        return "\n".join(lines) or "there are no variables"

    # A step

    def step(self, message: Message) -> None:
        """Run the program or shell command in a message of the host process, and send the report."""
        self._step += 1
        self._final = None
        sys.path_importer_cache.pop(self._folder, None)  # so that modules written by the last step are found
        if self._is_at_memory_limit:
            self._limit_memory(self._confinement["memory"])
        self._out, self._err = _reopened(self._out, 1), _reopened(self._err, 2)
        sys.stdout, sys.stderr = self._out, self._err
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._is_interrupted = False  # unblocking may have delivered an interrupt meant for the last step
        report = self._report(message)
        report["watched"] = self._watched(message["watch"]) if self._final is None else {}
        self._names.update(self._host_names)
        self.channel.send({"ev": "result", "seq": message["seq"], "final": self._final, **report})

    def _report(self, message: Message) -> Message:
        """Run a program and return its report.

        Building the report runs code of the program too, such as ``repr`` of its values, so interrupts stay possible.
        """
        report: Message = {"success": False, "shown": "", "json": None, "error": "", "error_type": ""}
        try:
            self._is_running = True
            try:
                self._run(message, report)
            except Interrupted:
                raise
            except BaseException as error:  # noqa: BLE001 - reported, whatever it is
                self._raise_memory_limit(error)
                report.update(_failure(error))
            report["variables"] = self._variables(message["snapshot"])
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

    def _run(self, message: Message, report: Message) -> None:
        with suppress(FinalAnswer):
            if "command" in message:
                self._command(message, report)
                return
            value = run(message["code"], f"<step {self._step}>", self._names)
            if value is not None:
                report["shown"] = shown(value, message["longest"])
                with suppress(ValueError):
                    report["json"] = [as_json(value, _MAX_JSON_BYTES)]
        report["success"] = True

    def _command(self, message: Message, report: Message) -> None:
        code = command(message["command"], message["env"])
        report.update(success=code == 0, shown=str(code), json=[code])

    def _interrupt(self, *_: Any) -> None:
        """Handle SIGINT: raise ``Interrupted`` in the program, unless it waits for the host process or has ended."""
        self._is_interrupted = True
        if self._is_running:
            raise Interrupted

    def _raise_memory_limit(self, error: BaseException) -> None:
        """Set the memory limit to its hard maximum after a ``MemoryError``, so that the report can be built."""
        if isinstance(error, MemoryError):
            self._is_at_memory_limit = True
            self._limit_memory(resource.getrlimit(resource.RLIMIT_DATA)[1])

    def _limit_memory(self, most: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (min(most, hard), hard))

    def _variables(self, longest: int) -> dict[str, tuple[str, str]]:
        """Return the class name of each variable, and its ``repr`` of at most ``longest`` characters (0: none)."""
        names = [name for name in self._names if name not in self._own and not name.startswith("_")]
        report: dict[str, tuple[str, str]] = {}
        for name in names[:_MAX_VARIABLES]:
            value = self._names[name]
            if not isinstance(value, types.ModuleType):
                report[name] = type_name(value), self._shown(name, value, longest) if longest else ""
        return report

    def _shown(self, name: str, value: Any, longest: int) -> str:
        """Return the ``repr`` of a variable, cut to ``longest`` characters.

        Return ``""`` if the ``repr`` of the same value made an earlier step time out.
        """
        if self._unfinished_reprs.get(name) == id(value):
            return ""
        self._unfinished_reprs[name] = id(value)
        try:
            text = shown(value, longest)
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a repr raises must not end the step
            text = f"<{type_name(value)} whose repr raises {type_name(error)}>"
        del self._unfinished_reprs[name]
        return text

    def _watched(self, names: list[str]) -> dict[str, Any]:
        """Return the JSON values of the variables ``names``; those that do not exist or are not JSON are left out."""
        report: dict[str, Any] = {}
        for name in names:
            with suppress(ValueError, KeyError):
                report[name] = as_json(self._names[name], _MAX_TEXT_BYTES)
        return report

    # Forks

    def fork(self, message: Message) -> None:
        """Fork a copy of this process, which becomes a child of the zygote; report the result to the host process."""
        self.channel.send({"ev": "ready"})
        self._rulesets = message["rulesets"]
        descriptors = self.channel.receive_descriptors(_DESCRIPTORS + self._rulesets + message["groups"])
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
        """Fork twice, so that the copy is not a child of this process; return True in the copy, False here."""
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
        # The process in between exits, and the kernel makes the zygote the parent of this one. Only then can the
        # parent-death signal be set.
        deadline = time.monotonic() + _ADOPTION_TIMEOUT_S
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
        message = self.channel.next_command()
        self._folder = message["folder"]
        if not why:
            why = _entered(self._folder)
        if why:
            self.channel.send({"ev": "failed", "why": why})
            os._exit(1)
        random.seed(message["seed"])
        self.channel.send({"ev": "hello", "layers": []})


def _failure(error: BaseException) -> Message:
    return {"success": False, "error_type": type_name(error), "error": cut(trace_of(error), _MAX_TRACE_CHARS)}


def _confined(rulesets: list[int]) -> str:
    """Apply Landlock rulesets, given as descriptors, to this forked worker; return ``""``, or why it failed."""
    try:
        for ruleset in rulesets:
            confinement.restrict_copy(ruleset)
    except OSError as error:
        return str(error.strerror)
    return ""


def _entered(folder: str) -> str:
    """Make a folder the working, home and temporary folder of this forked worker; return ``""``, or why it failed."""
    try:
        use_folder(folder)
    except OSError as error:
        return str(error.strerror)
    return ""
