"""The host's side of the zygote: starts it on first use, and again after it ended."""

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
"""Numeric libraries start a thread for each core: too many for each worker, and none may be in a zygote."""

_PICKLE = 4
"""The protocol of pickles; Python 3.6 and 3.7 know no later one."""
_PACKET = 4096
_START_TIMEOUT_S = 120.0
"""How long a zygote may take to import what it serves."""
_ADOPTION_TIMEOUT_S = 5.0
"""How long it may take to adopt a copy."""
_END_TIMEOUT_S = 5.0
"""How long it may take to end with all its children before it is killed."""


@dataclass(frozen=True)
class Program:
    """The program of a zygote and its children."""

    prepare: str
    """A function ``"module:name"`` that the zygote calls; every child calls the result with its
    descriptors."""
    argument: Any
    """The argument of ``prepare``, pickled."""
    environ: Mapping[str, str]
    """The environment variables of the zygote and its children."""
    command: Sequence[str] = (sys.executable, "-u", "-m", "envweave_gym.sandbox.inside.zygote")
    """The command; the number of a descriptor is appended."""
    path: Sequence[str] | None = None
    """The import path, unless the interpreter's own will do."""
    folder: str | None = None
    """A scratch folder that the zygote removes at its end."""
    is_direct: bool = True
    """Whether ``command`` starts the zygote itself, rather than a supervisor around it."""


class Fork:
    """A child of the zygote, and the host's end of its socket."""

    def __init__(
        self, key: int, connection: socket.socket, zygote: _Zygote, *, is_expected: bool = False
    ) -> None:
        self.connection, self._is_expected = connection, is_expected
        self.ended: str | None = None
        """How it ended, as a phrase."""
        self.seconds, self.memory = 0.0, 0
        """Seconds of processor time and peak memory in kilobytes, once it has ended."""
        self.refused = False
        """Whether it never existed: the system refused another process."""
        self._key, self._zygote = key, zygote
        self._end_event, self._adopted = threading.Event(), threading.Event()

    def has_zygote(self) -> bool:
        """Return whether its zygote is alive; if not, this child has ended or is about to."""
        return self._zygote.is_alive()

    def kill(self) -> None:
        """Kill the child; a copy that is only announced is cancelled."""
        if self._is_expected:
            self.cancel()
        else:
            self._zygote.order(KILL, self._key)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it has ended."""
        return self._end_event.wait(seconds)

    def expect(self, connection: socket.socket) -> Fork:
        """Announce a copy that this child will fork; it is then adopted or cancelled."""
        return self._zygote.expect(connection)

    def adopt(self, pid: int) -> None:
        """Have the zygote adopt the announced copy, given by its PID in the zygote's namespace.

        Raises ``OSError`` if that is no child of the zygote.
        """
        self._is_expected = False
        self._zygote.order(ADOPT, self._key, PID.pack(pid))
        if not self._adopted.wait(_ADOPTION_TIMEOUT_S) or self.ended is not None:
            raise OSError(f"its copy {self.ended or f'was not adopted within {_ADOPTION_TIMEOUT_S:g} s'}")

    def set_adopted(self) -> None:
        """Note that the zygote has adopted the copy."""
        self._adopted.set()

    def cancel(self) -> None:
        """Take the announcement of a copy back."""
        if self._end_event.is_set() or not self._is_expected:
            return
        self._zygote.order(GIVE_UP, self._key)
        self._zygote.forget(self._key)
        self.end("was never there")

    def end(self, ending: str) -> None:
        """Note how it ended, and wake readers of its socket.

        Processes that it started may hold its end of the socket and would keep it open.
        """
        self.ended = ending
        self._end_event.set()
        self._adopted.set()
        with suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)


def has_ended(pidfd: int) -> bool:
    """Return whether a process has ended, by its pidfd; -1 means that it is not known yet."""
    if pidfd < 0:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class ForkServer:
    """Forks children of a zygote, which it starts on first use."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._zygote: _Zygote | None = None
        self._closed = False
        self._lock = threading.Lock()

    def fork(self, *more: int) -> Fork:
        """Fork a child and give it a socket and these descriptors."""
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
                f"no process can be forked: what is served was not imported within {_START_TIMEOUT_S:g} s"
            )
        return zygote

    def close(self) -> None:
        """End the zygote and all its children for good.

        Waits until they are gone, except for those that even SIGKILL does not end in time.
        """
        with self._lock:
            self._closed, zygote = True, self._zygote
        if zygote is not None:
            zygote.stop()
            if not zygote.end_event.wait(_END_TIMEOUT_S):
                zygote.kill()
                zygote.end_event.wait(_END_TIMEOUT_S)


class _Zygote:
    """One run of the zygote, started and read by a thread of its own.

    The parent-death signal comes when the thread ends that started the process, so this thread stays.
    """

    def __init__(self, program: Program) -> None:
        self.ready, self.end_event = threading.Event(), threading.Event()
        self.ended: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._is_stopped = False
        self._failure: OSError | None = None
        self._start_error = ""
        """Why it could not start up."""
        self._owner = Owner()
        self._forks: dict[int, Fork] = {}
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        live = threading.Thread(target=self._run, args=(program, theirs), name="zygote", daemon=True)
        live.start()

    def is_alive(self) -> bool:
        """Return whether the kernel has it alive or it is starting; its end may not be noted here yet."""
        with self._lock:
            return self.ended is None and not has_ended(self._pidfd)

    def fork(self, ours: socket.socket, theirs: list[int]) -> Fork:
        """Fork a child with the descriptors ``theirs``."""
        key, fork = self._register(ours)
        with suppress(OSError):  # all forks learn of its end
            socket.send_fds(self._control, [PACKET.pack(FORK, key)], theirs)
        return fork

    def expect(self, ours: socket.socket) -> Fork:
        """Announce a child that another child forks."""
        key, fork = self._register(ours, is_expected=True)
        self.order(EXPECT, key)
        return fork

    def _register(self, ours: socket.socket, *, is_expected: bool = False) -> tuple[int, Fork]:
        key = next(self._keys)
        fork = Fork(key, ours, self, is_expected=is_expected)
        with self._lock:
            if self.ended is None:
                self._forks[key] = fork
        if self.ended is not None:
            ours.close()
            raise self._failure or NotAvailable(f"no process can be forked: the zygote {self.ended}")
        return key, fork

    def order(self, what: bytes, key: int, more: bytes = b"") -> None:
        """Send an order; if the zygote has ended, all its forks hear of it in another way."""
        with suppress(OSError):
            self._control.send(PACKET.pack(what, key) + more)

    def forget(self, key: int) -> None:
        """Drop a child that will not exist."""
        with self._lock:
            self._forks.pop(key, None)

    def stop(self) -> None:
        """Let it end; does nothing in a forked process."""
        if self._owner.is_here():
            self._is_stopped = True
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill it, or keep it from starting; the kernel kills its children."""
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
                    self._process = process = _start(program, theirs)
                    self._pidfd = os.pidfd_open(process.pid)
                _send_program(process, program)
            with suppress(ConnectionError):  # it has not read all orders
                while notice := self._control.recv(_PACKET):
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
        if fork is None:  # it was given up
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
    """Run the command; the output of the zygote and its children goes to this process's standard error."""
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
    """Send the program over standard input."""
    start = {
        "host": os.getpid() if program.is_direct else None,
        "path": program.path,
        "environ": program.environ,
        "prepare": program.prepare,
        "folder": program.folder,
    }
    with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as source:
        source.write(pickle.dumps(start, _PICKLE) + pickle.dumps(program.argument, _PICKLE))
