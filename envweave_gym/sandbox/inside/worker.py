"""A worker: one episode of untrusted Python, in a process that has given up all it does not need.

It is forked from the zygote, puts the policy over itself, and then does what its host orders: run a step, set
variables, offer tools, fork. What it says of a step may be forged by the program, which lives in the same
process; what can be forged so is what the program is told itself.
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

from . import policy
from .channel import Channel, Message, ToolError
from .kernel import adopt_orphans, end_with_parent, exit_code
from .program import FinalAnswer, Interrupted, command, run, trace_of
from .tools import function_of, own_function
from .values import as_json, cut, shown, type_name, weight

CONTROL = 3
"""The descriptor of the channel."""
_STACK = 2 << 20
"""The bytes of the stack of a thread, all of which count as memory."""
_VARIABLES = 300
"""So many variables are told."""
_TRACE = 20_000
_LARGEST_JSON, _LARGEST_TEXT = 1 << 20, 4 << 20
_GIVEN = 3
"""The number of descriptors every process is given; those of a ruleset and of a memory cgroup may follow."""
_ADOPTED = 5.0
"""So many seconds the zygote has to become the parent of a fork."""


def prepare(warm: list[str]) -> Callable[[list[int]], None]:
    """In the zygote: import what programs are to find imported; gives what each worker does."""
    for module in warm:
        try:
            __import__(module)
        except Exception as error:
            raise ImportError(f"warm={module!r} cannot be imported: {error}") from error
    sys.path.insert(0, "")  # what a program writes into its folder it can import
    threading.stack_size(_STACK)
    parent = os.getpid()
    return lambda descriptors: _work(descriptors, parent)


def _work(descriptors: list[int], parent: int) -> None:
    entered = enter(descriptors[_GIVEN:])
    channel = take(descriptors[:_GIVEN])
    with suppress(EOFError):
        begin = channel.order()
        os.setsid()
        move_to(begin["folder"])
        layers, asked = policy.apply(begin["policy"], begin["folder"], parent)
        worker = Worker(channel, begin, parent)
        hello = {"ev": "hello", "layers": [*entered, *layers]}
        channel.greet(hello, [] if asked is None else [asked])
        worker.work()


def enter(groups: list[int]) -> list[str]:
    """Move this process into the memory cgroup that it has a descriptor of, if any; the layers that gives.

    Where the kernel refuses that the other limits are there still.
    """
    with suppress(OSError):
        for group in groups:
            os.write(group, b"0")
        return ["memory cgroup" for _ in groups]
    return []


def take(descriptors: list[int]) -> Channel:
    """Have the channel, the output and nothing else open."""
    control, out, err = descriptors
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), out, err, control)):
        if source != target:
            os.dup2(source, target)
    os.set_inheritable(CONTROL, False)
    os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
    return Channel(CONTROL)


def move_to(folder: str) -> None:
    """Work in this folder, and take it for everything that programs look for folders of their own for."""
    os.chdir(folder)
    os.environ.update(HOME=folder, TMPDIR=folder)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", 1, "utf-8", "backslashreplace", closefd=False)


def _open(stream: TextIO, descriptor: int) -> TextIO:
    """The stream; another where a program has closed it, or taken it apart."""
    try:
        return _stream(descriptor) if stream.closed else stream
    except ValueError:
        return _stream(descriptor)


class Worker:
    """Does what the host orders."""

    def __init__(self, channel: Channel, begin: Message, parent: int) -> None:
        self.ch = channel
        self._policy, self._parent = begin["policy"], parent
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        self._names = vars(main)
        self._kept: dict[str, Any] = {}
        """The names that are the host's, and what they mean before every step."""
        self._step, self._folder = 0, begin["folder"]
        self._rulesets = 0
        """How many descriptors of rulesets the next copy is given."""
        self._final: Message | None = None
        self._is_running = self._is_interrupted = self._is_full = False
        self._endless: dict[str, int] = {}
        """Variables that are being shown, or were when the time of a step was over."""
        self._orders: dict[str, Callable[[Message], None]] = {
            "exec": self.step,
            "names": self.name,
            "fork": self.fork,
        }
        # lines go out as they are written: what a killed step has printed is told
        self._out, self._err = map(_stream, (1, 2))
        self._own = frozenset(self._names) | {"_", "__builtins__"}

    def work(self) -> None:
        """Do one order after the other, until the host has gone."""
        while True:
            m = self.ch.order()
            self._orders[m["op"]](m)

    # What programs find

    def name(self, m: Message) -> None:
        """Give names their meaning: values, modules, tools, and what ends an episode."""
        try:
            self._give(m)
        except Exception as error:  # noqa: BLE001 - a module or the host's own program may raise anything
            self.ch.send({"ev": "failed", "why": f"no episode can begin: {type(error).__name__}: {error}"})
        else:
            self.ch.send({"ev": "named"})

    def _give(self, m: Message) -> None:
        random.seed(m["seed"])
        for module in m["imports"]:
            self._names[module] = __import__(module)
        self._names.update(m["values"])
        ends: dict[str, Any] = {
            "final": self._final_of_value,
            "final_var": self._final_of_name,
            "show": self._show_names,
        }
        given = {name: own_function(name, ends[kind]) for name, kind in m["ends"].items()}
        given.update({spec["name"]: function_of(spec, self._call) for spec in m["tools"]})
        if m["tools"]:
            given["ToolError"] = ToolError
        given.update({name: self._names[name] for name in m["kept"]})
        given.update(self._defined_by(m["source"]))
        for name in self._kept.keys() - given.keys():
            self._names.pop(name, None)
        self._kept = given
        self._names.update(given)
        self._own |= {*given, *m["imports"], *m["values"]}

    def _defined_by(self, source: str) -> dict[str, Any]:
        """What a program of the host defines."""
        names: dict[str, Any] = {"__name__": "__main__"}
        if source:
            run(source, "<given>", names)
        return {name: value for name, value in names.items() if not name.startswith("_")}

    def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool; an interruption of the main thread waits for its answer."""
        if threading.current_thread() is not threading.main_thread():
            return self.ch.call(name, args, kwargs)
        was_running, self._is_running = self._is_running, False
        try:
            return self.ch.call(name, args, kwargs)
        finally:
            self._is_running = was_running
            if was_running and self._is_interrupted:
                raise Interrupted

    def _final_of_value(self, value: Any) -> None:
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

    def _final_of_name(self, name: str) -> None:
        """Give the value of a variable, which is named as text, as the last answer."""
        if not isinstance(name, str):
            self._final_of_value(name)
        elif name not in self._names:
            there = ", ".join(self._variables(0)) or "none"
            raise NameError(f"there is no variable {name!r}; there are {there}")
        else:
            self._final_of_value(self._names[name])

    def _show_names(self) -> str:
        """Which variables there are."""
        told = [f"{name}: {kind}" for name, (kind, _) in self._variables(0).items()]
        return "\n".join(told) or "there are no variables"

    # A step

    def step(self, m: Message) -> None:
        """Run a program, and tell what came of it."""
        self._step += 1
        self._final = None
        sys.path_importer_cache.pop(self._folder, None)  # modules that the last step has written are found
        if self._is_full:
            self._limit_memory(self._policy["memory"])
        self._out, self._err = _open(self._out, 1), _open(self._err, 2)
        sys.stdout, sys.stderr = self._out, self._err
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._is_interrupted = False  # that of the last step may have come only now
        started = time.process_time()
        told = self._told(m)
        told["watched"] = self._watched(m["watch"]) if self._final is None else {}
        self._names.update(self._kept)
        told["threads"], told["cpu"] = threading.active_count() - 1, time.process_time() - started
        self.ch.send({"ev": "result", "seq": m["seq"], "final": self._final, **told})

    def _told(self, m: Message) -> Message:
        """Run it, and describe it, which runs more of the program: how its values and errors show."""
        told: Message = {"success": False, "shown": "", "json": None, "error": "", "error_type": ""}
        try:
            self._is_running = True
            try:
                self._run(m, told)
            except Interrupted:
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a program raises is told
                self._make_room(error)
                told.update(success=False, error_type=type_name(error), error=cut(trace_of(error), _TRACE))
            told["variables"] = self._variables(m["snapshot"])
            for stream in (self._out, self._err):
                with suppress(OSError, ValueError):  # a program may have closed it
                    stream.flush()
            self._is_running = False
        except Interrupted as error:
            self._is_running = False
            error.__context__ = None  # what was told when time was over may take for ever to tell
            told.update(success=False, error_type=type_name(error), error=cut(trace_of(error), _TRACE))
            told["variables"] = self._variables(0)
        return told

    def _run(self, m: Message, told: Message) -> None:
        with suppress(FinalAnswer):
            if "command" in m:
                self._command(m, told)
                return
            value = run(m["code"], f"<step {self._step}>", self._names)
            if value is not None:
                told["shown"] = shown(value, m["longest"])
                with suppress(ValueError):
                    told["json"] = [as_json(value, _LARGEST_JSON)]
        told["success"] = True

    def _command(self, m: Message, told: Message) -> None:
        code = command(m["command"], m["env"])
        told.update(success=code == 0, shown=str(code), json=[code])

    def _interrupt(self, *_: Any) -> None:
        """SIGINT: end the program where it is, unless it waits for the host."""
        self._is_interrupted = True
        if self._is_running:
            raise Interrupted

    def _make_room(self, error: BaseException) -> None:
        """Where the memory is at its limit, have some to tell that."""
        if isinstance(error, MemoryError):
            self._is_full = True
            self._limit_memory(resource.getrlimit(resource.RLIMIT_DATA)[1])

    def _limit_memory(self, most: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (min(most, hard), hard))

    def _variables(self, longest: int) -> dict[str, tuple[str, str]]:
        """The names a program has defined: what each is, and how it shows in so many characters."""
        names = [name for name in self._names if name not in self._own and not name.startswith("_")]
        told: dict[str, tuple[str, str]] = {}
        for name in names[:_VARIABLES]:
            value = self._names[name]
            if not isinstance(value, types.ModuleType):
                told[name] = type_name(value), self._shown(name, value, longest) if longest else ""
        return told

    def _shown(self, name: str, value: Any, longest: int) -> str:
        """How a variable shows; one that took all the time that a step had does not any more."""
        if self._endless.get(name) == id(value):
            return ""
        self._endless[name] = id(value)
        try:
            text = shown(value, longest)
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - no way of showing itself ends the step
            text = f"<{type_name(value)} whose repr raises {type_name(error)}>"
        del self._endless[name]
        return text

    def _watched(self, names: list[str]) -> dict[str, Any]:
        """What the host wants to know after every step, as far as it is JSON."""
        told: dict[str, Any] = {}
        for name in names:
            with suppress(ValueError, KeyError):
                told[name] = as_json(self._names[name], _LARGEST_TEXT)
        return told

    # Forks

    def fork(self, m: Message) -> None:
        """Have a copy of this process go on elsewhere, as a child of the zygote too."""
        self.ch.send({"ev": "ready"})
        self._rulesets = m["rulesets"]
        descriptors = self.ch.descriptors(_GIVEN + self._rulesets + m["groups"])
        told: Message = {"ev": "forked"}
        is_copy = False
        try:
            is_copy = self._is_copy()
        except OSError as error:
            told = {"ev": "failed", "why": f"the process of the episode cannot be forked: {error.strerror}"}
        if is_copy:
            self._be_another(descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        self.ch.send(told)

    def _is_copy(self) -> bool:
        """Fork twice, so that the copy is no child of this process; whether this is the copy."""
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

    def _be_another(self, descriptors: list[int]) -> None:
        until = time.monotonic() + _ADOPTED
        while os.getppid() != self._parent:
            if time.monotonic() > until:
                os._exit(1)
            time.sleep(0.0002)
        os.setsid()
        end_with_parent(signal.SIGKILL, self._parent)
        self.ch.leave()
        rest = _GIVEN + self._rulesets
        why = _narrowed(descriptors[_GIVEN:rest])
        enter(descriptors[rest:])
        self.ch = take(descriptors[:_GIVEN])
        m = self.ch.order()
        self._folder = m["folder"]
        if not why:
            why = _moved(self._folder)
        if why:
            self.ch.send({"ev": "failed", "why": why})
            os._exit(1)
        random.seed(m["seed"])
        self.ch.send({"ev": "hello", "layers": []})


def _narrowed(rulesets: list[int]) -> str:
    """Put the rules of a copy over this process; why that failed, if it did."""
    try:
        for ruleset in rulesets:
            policy.narrow(ruleset)
    except OSError as error:
        return str(error.strerror)
    return ""


def _moved(folder: str) -> str:
    """Work in the folder of a copy; why that failed, if it did."""
    try:
        move_to(folder)
    except OSError as error:
        return str(error.strerror)
    return ""
