"""The host process's side of a zygote: starts it on first use and after its death, and has it fork children."""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import Owner
from envweave_gym.sandbox.inside.kernel import describe_exit
from envweave_gym.sandbox.inside.zygote import (
    ADOPT,
    ADOPTED,
    END,
    EXPECT,
    FAILED,
    FORK,
    GIVE_UP,
    KILL,
    PACKET,
    PID,
    READY,
)

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment variables that keep numeric libraries from starting a thread for each core.

A process that forks, like a zygote, must have a single thread."""

_PICKLE_PROTOCOL = 4
"""Version of the pickle format; Python 3.6 and 3.7 do not know a later one."""
_PACKET_BYTES = 4096
_START_TIMEOUT_S = 120.0
"""Seconds that the host waits for a new zygote to import its modules."""
_ADOPTION_TIMEOUT_S = 5.0
"""Seconds that the host waits for the zygote to adopt a copy."""
_END_TIMEOUT_S = 5.0
"""Seconds that the host waits for the zygote and its children to end before it kills the zygote."""


@dataclass(frozen=True)
class Program:
    """The program that a zygote and its children run."""

    prepare: str
    """The name ``"module:function"`` of a function that the zygote calls once.

    Each child calls the function's result with the list of its descriptors."""
    argument: Any
    """The argument of ``prepare``; it must be picklable."""
    environ: Mapping[str, str]
    """The environment variables of the zygote and its children."""
    command: Sequence[str] = (sys.executable, "-u", "-m", "envweave_gym.sandbox.inside.zygote")
    """The command that starts the zygote; the descriptor number of its control socket is appended to it."""
    path: Sequence[str] | None = None
    """The import path of the zygote; ``None`` leaves the interpreter's own."""
    folder: str | None = None
    """The scratch folder that the zygote removes when it ends; ``None`` if there is none to remove."""
    is_direct: bool = True
    """Whether ``command`` starts the zygote itself, and not a supervisor that starts the zygote."""


class Fork:
    """The host process's handle of one child of the zygote, with its end of the child's socket."""

    def __init__(
        self, key: int, connection: socket.socket, zygote: _Zygote, *, is_expected: bool = False
    ) -> None:
        self.connection, self._is_expected = connection, is_expected
        self.ended: str | None = None
        """The phrase on how the child ended, such as "exited with code 1"; ``None`` while it lives."""
        self.seconds, self.memory = 0.0, 0
        """The child's processor time in seconds and peak memory in kilobytes; 0 until it has ended."""
        self.refused = False
        """Whether the child never existed, because the kernel refused to create another process."""
        self._key, self._zygote = key, zygote
        self._end_event, self._adopted = threading.Event(), threading.Event()

    def has_zygote(self) -> bool:
        """Return whether the child's zygote is alive; if not, the kernel kills the child too."""
        return self._zygote.is_alive()

    def kill(self) -> None:
        """Kill the child; if it is a copy that the zygote expects but has not adopted yet, :meth:`cancel` it."""
        if self._is_expected:
            self.cancel()
        else:
            self._zygote.send_command(KILL, self._key)

    def wait(self, seconds: float) -> bool:
        """Wait up to this many seconds for the child's end; return whether it has ended."""
        return self._end_event.wait(seconds)

    def expect(self, connection: socket.socket) -> Fork:
        """Let the zygote expect a copy that this child will fork of itself; return the handle of the copy.

        While it expects a copy, the zygote kills no child that it does not know. Call :meth:`adopt` or :meth:`cancel`
        of the handle afterwards.
        """
        return self._zygote.expect(connection)

    def adopt(self, pid: int) -> None:
        """Let the zygote treat the expected copy as its child; ``pid`` is the one in the zygote's namespace.

        Raise ``OSError`` if that process is not a child of the zygote.
        """
        self._is_expected = False
        self._zygote.send_command(ADOPT, self._key, PID.pack(pid))
        if not self._adopted.wait(_ADOPTION_TIMEOUT_S) or self.ended is not None:
            raise OSError(f"its copy {self.ended or f'was not adopted within {_ADOPTION_TIMEOUT_S:g} s'}")

    def set_adopted(self) -> None:
        """Record the zygote's notice that it has adopted the copy."""
        self._adopted.set()

    def cancel(self) -> None:
        """Let the zygote expect this copy no more; do nothing if it was adopted or has ended."""
        if self._end_event.is_set() or not self._is_expected:
            return
        self._zygote.send_command(GIVE_UP, self._key)
        self._zygote.forget(self._key)
        self.end("was never there")

    def end(self, ending: str) -> None:
        """Record how the child ended, and shut its socket down so that readers return.

        The socket might not close by itself: processes that the child started may hold the other end.
        """
        self.ended = ending
        self._end_event.set()
        self._adopted.set()
        with suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended; False for -1, the value before the process is known."""
    if pidfd < 0:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class ForkServer:
    """Forks children from a zygote, which it starts on first use and again after it died."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._zygote: _Zygote | None = None
        self._closed = False
        self._lock = threading.Lock()

    def fork(self, *more: int) -> Fork:
        """Fork a child and return its handle.

        The child gets one end of a socket pair, and after it the descriptors ``more``.
        """
        zygote = self._running()
        ours, theirs = socket.socketpair()
        with theirs:
            return zygote.fork(ours, [theirs.fileno(), *more])

    def has_zygote(self) -> bool:
        """Return whether the zygote is alive."""
        return self._zygote is not None and self._zygote.is_alive()

    def _running(self) -> _Zygote:
        with self._lock:
            if self._closed:
                raise NotAvailable("no process is forked any more: the server is stopping; use another")
            if self._zygote is None or not self._zygote.is_alive():
                self._zygote = _Zygote(self._program)
                weakref.finalize(self, self._zygote.stop)
            zygote = self._zygote
        if not zygote.ready.wait(_START_TIMEOUT_S):
            zygote.kill()
            raise NotAvailable(
                f"no process can be forked: the zygote did not finish its imports within {_START_TIMEOUT_S:g} s"
            )
        return zygote

    def close(self) -> None:
        """End the zygote with all its children, wait until they have ended, and refuse further forks.

        Each of the two waits, before and after SIGKILL, has a time limit.
        """
        with self._lock:
            self._closed, zygote = True, self._zygote
        if zygote is not None:
            zygote.stop()
            if not zygote.end_event.wait(_END_TIMEOUT_S):
                zygote.kill()
                zygote.end_event.wait(_END_TIMEOUT_S)


class _Zygote:
    """One zygote process, started and read by a thread of its own.

    That thread must live as long as the process: Linux sends the parent-death signal when the thread that started
    a process ends.
    """

    def __init__(self, program: Program) -> None:
        self.ready, self.end_event = threading.Event(), threading.Event()
        self.ended: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._is_stopped = False
        self._failure: OSError | None = None
        self._start_error = ""
        """The zygote's message on why it could not start; empty if it sent none."""
        self._owner = Owner()
        self._forks: dict[int, Fork] = {}
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        live = threading.Thread(target=self._run, args=(program, theirs), name="zygote", daemon=True)
        live.start()

    def is_alive(self) -> bool:
        """Return whether the zygote is starting or running.

        The kernel is asked, because the thread that reads the zygote's notices may lag behind its end.
        """
        with self._lock:
            return self.ended is None and not has_ended(self._pidfd)

    def fork(self, ours: socket.socket, theirs: list[int]) -> Fork:
        """Fork a child that gets the descriptors ``theirs``; ``ours`` is this process's end of its socket."""
        key, fork = self._register(ours)
        with suppress(OSError):  # the zygote has ended, and _note_end() ends this fork
            socket.send_fds(self._control, [PACKET.pack(FORK, key)], theirs)
        return fork

    def expect(self, ours: socket.socket) -> Fork:
        """Let the zygote expect a copy that one of its children will fork of itself; return the handle of the copy.

        ``ours`` is this process's end of the copy's socket.
        """
        key, fork = self._register(ours, is_expected=True)
        self.send_command(EXPECT, key)
        return fork

    def _register(self, ours: socket.socket, *, is_expected: bool = False) -> tuple[int, Fork]:
        key = next(self._keys)
        fork = Fork(key, ours, self, is_expected=is_expected)
        with self._lock:
            if self.ended is None:
                self._forks[key] = fork
        if self.ended is not None:  # it may have ended since the caller looked
            ours.close()
            raise self._failure or NotAvailable(f"no process can be forked: the zygote {self.ended}")
        return key, fork

    def send_command(self, what: bytes, key: int, more: bytes = b"") -> None:
        """Send a command to the zygote: its kind ``what``, the number ``key`` of a child, and the bytes ``more``.

        If the zygote has ended, nothing is sent: ``_note_end`` then ends all children.
        """
        with suppress(OSError):
            self._control.send(PACKET.pack(what, key) + more)

    def forget(self, key: int) -> None:
        """Drop the handle of the expected copy with the number ``key``, which will not exist."""
        with self._lock:
            self._forks.pop(key, None)

    def stop(self) -> None:
        """Let the zygote end by closing its control socket; do nothing in a forked process."""
        if self._owner.is_here():
            self._is_stopped = True
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the zygote, or keep it from starting; its parent-death signal kills the children."""
        if self._owner.is_here():
            with self._lock:
                self._is_stopped, process = True, self._process
            if process is not None:
                process.kill()

    def _run(self, program: Program, theirs: socket.socket) -> None:
        ending = "was not started"
        try:
            with theirs:
                with self._lock:
                    if self._is_stopped:
                        return
                    # under the lock, so that kill() sees either the process or that it may not start
                    self._process = process = _start(program, theirs)
                    self._pidfd = os.pidfd_open(process.pid)
                _send_program(process, program)
            with suppress(ConnectionError):  # a reset: the zygote ended before it read all commands
                while notice := self._control.recv(_PACKET_BYTES):
                    self._handle(notice)
            ending = describe_exit(process.wait())
            ending = f"cannot begin: {self._start_error}" if self._start_error else ending
        except OSError as error:
            self._failure = error
        finally:
            self._note_end(ending)

    def _handle(self, notice: bytes) -> None:
        what, key = PACKET.unpack_from(notice)
        if what == READY:
            self.ready.set()
            return
        if key == 0:
            self._start_error = notice[PACKET.size :].decode()
            return
        with self._lock:
            fork = self._forks.get(key) if what == ADOPTED else self._forks.pop(key, None)
        if fork is None:  # the expected copy was cancelled
            return
        if what == ADOPTED:
            fork.set_adopted()
            return
        if what == FAILED:
            fork.refused = True
            fork.end(notice[PACKET.size :].decode())
        else:
            code, fork.seconds, fork.memory = END.unpack_from(notice, PACKET.size)
            fork.end(describe_exit(code))

    def _note_end(self, ending: str) -> None:
        with self._lock:
            self.ended = ending
            forks, self._forks = list(self._forks.values()), {}
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        self._control.close()
        self.ready.set()
        for fork in forks:
            fork.end(f"ended with the zygote, which {ending}")
        self.end_event.set()


def _start(program: Program, control: socket.socket) -> subprocess.Popen[bytes]:
    """Start the command; ``stdout`` of the zygote and its children goes to this process's ``stderr``."""
    number = control.fileno()
    path = {} if program.path is None else {"PYTHONPATH": os.pathsep.join(program.path)}
    return subprocess.Popen(
        [*program.command, str(number)],
        stdin=subprocess.PIPE,
        stdout=2,
        env={**program.environ, **path},
        pass_fds=[number],
        start_new_session=True,
    )


def _send_program(process: subprocess.Popen[bytes], program: Program) -> None:
    """Send the program to the zygote over its standard input."""
    start = {
        "host": os.getpid() if program.is_direct else None,
        "path": program.path,
        "environ": program.environ,
        "prepare": program.prepare,
        "folder": program.folder,
    }
    with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as source:
        source.write(pickle.dumps(start, _PICKLE_PROTOCOL) + pickle.dumps(program.argument, _PICKLE_PROTOCOL))
