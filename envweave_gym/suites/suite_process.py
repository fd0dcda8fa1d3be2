"""``SuiteProcess``: a child process in a suite's Python, which answers numbered calls over a framed Unix socket.

The child runs below a keeper (``os_support/process_keeper.py``), which ends it and all its descendants when this
process ends, in whichever way. One process may hold several environments; it does one call after the other.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from envweave_gym.core.faults import (
    EnvironmentCrashed,
    InvalidAction,
    InvalidArgument,
    NotAvailable,
    ResetNeeded,
    SessionLost,
    UnknownEnvironment,
)
from envweave_gym.net.framed_socket import POLL_S, FramedSocket
from envweave_gym.os_support import process_keeper as keeper
from envweave_gym.os_support.pipe_log import PipeLog
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.remote.errors import crash
from envweave_gym.suites.virtual_environments import VirtualEnvironment
from envweave_gym.wire.values import dumps, loads

_PROGRAM = Path(__file__).parent / "inside" / "__main__.py"
_LIVENESS_CHECK_S = 2.0
"""Interval of the check that the child runs, for children whose own children keep the socket open."""
_LONE_POLL_S = 500e-6
"""Time of polling for a reply; with 100 us a step of Hopper-v5 costs 190 us over its own 69, with 500 us 80."""
_END_S = 4 * keeper.GRACE_S
_PIPELINED_BYTES = 1 << 16
"""Limit of unanswered requests to one child; a socket's buffer holds more."""
_LOG_DRAIN_S = 0.5
_LAST_WORDS_CHARS = 300
_NOT_INHERITED = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"}
"""Variables about the owner's Python that would break the suite's; all others are passed on."""
_KINDS: dict[str, type[Exception]] = {
    "InvalidAction": InvalidAction,
    "InvalidArgument": InvalidArgument,
    "ResetNeeded": ResetNeeded,
    "UnknownEnvironment": UnknownEnvironment,
    "NoAttribute": AttributeError,
}
"""Exceptions by the kinds of error replies (``inside/calls.py``); all others are crashes of the environment."""


class SuiteProcess:
    """A running child, started by the constructor; after its end every call raises why it has ended."""

    def __init__(self, environment: VirtualEnvironment, name: str, *, is_lone: bool = False) -> None:
        """Start the child; ``name`` is the environment's, for error messages.

        ``is_lone`` says that no other child steps at the same time, which longer polls for replies would slow down.
        """
        self._name = name
        self._lock = threading.RLock()
        self._numbers, self._handles = count(1), count(1)
        self._replies: dict[int, Any] = {}
        """Replies that have come while another call's was waited for."""
        self._unanswered: dict[int, int] = {}
        """Sizes of the requests that have no reply yet, by their numbers."""
        self._ended: tuple[type[Exception], str] | None = None
        self._child = _Child(environment, name, _LONE_POLL_S if is_lone else POLL_S)
        self._finalizer = weakref.finalize(self, self._child.end)
        in_forked_child(self, SuiteProcess._forget)

    @property
    def is_alive(self) -> bool:
        """Whether calls are possible."""
        return self._ended is None

    def new_handle(self) -> int:
        """Return a number for another environment in this process."""
        return next(self._handles)

    def call(self, handle: int, method: str, arguments: Any, deadline_s: float) -> Any:
        """Send a call and return its result; raise the environment's exception, or why the process has ended.

        If there is no reply after ``deadline_s`` seconds, the process is killed and ``TimeoutError`` raised.
        """
        deadline = time.monotonic() + deadline_s
        return self.result(self.send(handle, method, arguments, deadline), method, deadline, deadline_s)

    def send(self, handle: int, method: str, arguments: Any, deadline: float) -> int:
        """Send a call whose result :meth:`result` waits for, and return its number."""
        number = next(self._numbers)
        frame = dumps([number, handle, method, arguments])
        with self._lock:
            self._check()
            try:
                # A child that waits to send a reply reads nothing: more than the socket holds would block both ends.
                while self._unanswered and sum(self._unanswered.values()) + len(frame) > _PIPELINED_BYTES:
                    self._store_reply(deadline)
                self._unanswered[number] = len(frame)
                self._child.socket.send(frame, deadline)
            except BaseException as error:  # noqa: BLE001 - it is raised again, and the process ended
                self._fail(error, method)
        return number

    def result(self, number: int, method: str, deadline: float, deadline_s: float) -> Any:
        """Wait for the reply to the call with this number, and return its result or raise its error."""
        with self._lock:
            while number not in self._replies:
                self._check()
                try:
                    self._store_reply(deadline)
                except BaseException as error:  # noqa: BLE001 - it is raised again, and the process ended
                    self._fail(error, method, deadline_s)
            reply = self._replies.pop(number)
        kind, result, *details = reply
        if kind:
            _raise(self._name, method, kind, result, *details)
        return result

    def _store_reply(self, deadline: float) -> None:
        """Wait for the next reply, to whichever call it is, and store it."""
        while True:
            try:
                frame = self._child.socket.receive(min(deadline, time.monotonic() + _LIVENESS_CHECK_S))
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                if not self._child.runs():
                    raise ConnectionResetError("the process has ended") from None
                continue
            number, *reply = loads(frame)
            if self._unanswered.pop(number, None) is not None:
                self._replies[number] = reply
                return
            if number != 0:
                raise ValueError(f"a reply to call {number}, which was not made")
            self._child.pid = int(reply[1])  # the greeting

    def _check(self) -> None:
        if self._ended is not None:
            kind, text = self._ended
            raise kind(text)

    def _fail(self, error: BaseException, method: str, deadline_s: float | None = None) -> NoReturn:
        """Kill the child after a failed call, remember why, and raise it; Ctrl-C is raised itself."""
        if isinstance(error, TimeoutError) and self._child.runs():
            limit = "its deadline" if deadline_s is None else f"call_deadline={deadline_s:g} s"
            todo = "give it more time" if method == "make" else "give more time, or call reset()"
            text = f"{method} did not end before {limit}, so its process was killed; {todo}"
            self._ended = TimeoutError, f"{self._name}: {text}"
        elif isinstance(error, OSError):
            self._ended = (
                EnvironmentCrashed,
                f"{self._name}: the process of its suite {self._child.last_words()}",
            )
        elif isinstance(error, Exception):
            text = f"{self._name}: its process sent what is no reply ({type(error).__name__}: {error})"
            self._ended = EnvironmentCrashed, text
        else:
            text = f"{self._name}: {type(error).__name__} interrupted a call, so its process was ended; call reset()"
            self._ended = SessionLost, text
        self._child.kill()
        if not isinstance(error, Exception):
            raise error
        kind, text = self._ended
        raise kind(text) from error

    def close(self) -> None:
        """End the child: it exits when its current call has ended, and is killed if that takes long."""
        with self._lock:
            if self._ended is None:
                self._ended = SessionLost, f"{self._name}: its process was closed; reset() starts another"
            self._finalizer()

    def kill(self, reason: str) -> None:
        """Kill the child in the middle of its call."""
        if self._ended is None:
            self._ended = SessionLost, f"{self._name}: {reason}"
        self._child.kill()

    def _forget(self) -> None:
        """Give the child up in a forked process: it belongs to the parent."""
        self._lock = threading.RLock()
        self._ended = SessionLost, f"{self._name}: its process belongs to the parent process; call reset()"
        self._finalizer.detach()
        self._child.forget()


def _raise(name: str, method: str, kind: str, reason: str, cause: str = "", trace: str = "") -> NoReturn:
    """Raise the exception of an error reply, with the traceback of the suite's process as a note."""
    if kind in _KINDS:
        named = reason if reason.startswith(name) else f"{name}: {reason}"
        error = _KINDS[kind](named)
    elif kind == "ImportFailed":
        error = NotAvailable(f"{name}: its suite cannot be imported: {cause}: {' '.join(reason.split())}")
    else:
        error = crash(cause, f"{name}: {cause}: {reason}" if method == "make" else reason)
        if type(error) is EnvironmentCrashed:  # not a built-in exception, whose type is lost here
            error = EnvironmentCrashed(f"{cause}: {reason}")
            error.cause = cause
    if trace and isinstance(error, EnvironmentCrashed):
        error.add_note(f"in the process of the suite:\n{trace}")
    raise error


class _Child:
    """The keeper and the child below it, with the descriptors that belong to them."""

    def __init__(self, environment: VirtualEnvironment, name: str, poll_s: float) -> None:
        self.pid = 0
        """PID of the child, which is the leader of its process group; 0 until its greeting has come."""
        self._ending = threading.RLock()  # reentrant: garbage collection may call end() within end()
        ours, theirs = socket.socketpair()
        descriptors: list[int] = []
        try:
            descriptors += os.pipe()
            descriptors += os.pipe()
            owner, self._lifeline, log, written = descriptors
            self._process = _started(environment, name, theirs, owner, written)
        except BaseException:
            ours.close()
            for descriptor in descriptors[1:3]:
                os.close(descriptor)
            raise
        finally:
            theirs.close()
            for descriptor in (*descriptors[:1], *descriptors[3:]):
                os.close(descriptor)
        self.socket = FramedSocket(ours, poll_s=poll_s)
        self._log = PipeLog(log)

    def runs(self) -> bool:
        """Return whether the child runs."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """Return how the child ended, and the last line of its stderr."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._log.wait(_LOG_DRAIN_S)
        code = self._process.poll()
        lines = [line for line in self._log.text().splitlines() if line.strip()]
        last = f": {' '.join(lines[-1].split())[:_LAST_WORDS_CHARS]}" if lines else ""
        if code is None:
            return f"has closed its connection{last}"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how}{last}"

    def kill(self) -> None:
        """Kill the child and its descendants now."""
        with self._ending:
            if self.pid and self.runs():  # the keeper runs, so the PID is still its child's
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self.end()

    def end(self) -> None:
        """Close the connection, upon which the child exits; the keeper kills what is left after a pause."""
        with self._ending:
            self.socket.cut()
            if self._lifeline < 0:
                return
            lifeline, self._lifeline = self._lifeline, -1
            with suppress(OSError):
                os.write(lifeline, b"!")  # a forked process may hold the pipe open
            os.close(lifeline)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:  # a keeper that was stopped
                self._process.kill()
                self._process.wait()
            self.socket.close()

    def forget(self) -> None:
        """Close the descriptors in a forked process; they would keep the parent's child alive."""
        self._process.returncode = 0  # it is no child of this process, and Popen would wait for it
        self._log.forget()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _started(
    environment: VirtualEnvironment, name: str, connected: socket.socket, owner: int, log: int
) -> subprocess.Popen[bytes]:
    folder = environment.folder
    kept = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    path = os.pathsep.join([str(folder / "bin"), kept.get("PATH", os.defpath)])
    try:
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(owner)),
                *(str(environment.python), "-s", str(_PROGRAM)),
            ],
            stdin=connected.fileno(),
            stdout=log,
            stderr=log,
            env={**kept, "PATH": path, "VIRTUAL_ENV": str(folder)},
            pass_fds=[owner, environment.lock],
            start_new_session=True,
        )
    except OSError as error:
        raise NotAvailable(f"{name}: the process of its suite cannot be started: {error}") from error
