"""The host's side of the zygote: starts it when it is needed first, and again should it end."""

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
"""Numeric libraries start as many threads as there are cores: not in every worker, and never in a zygote."""

_PICKLE = 4
"""The version of pickles: Python 3.6 and 3.7 know no later one."""
_PACKET = 4096
_STARTING = 120.0
"""So many seconds a zygote has to import what is served."""
_ADOPTING = 5.0
"""So many seconds it has to take for its child what a child has forked."""
_ENDING = 5.0
"""So many seconds it has to end, with all its children, before it is killed."""


@dataclass(frozen=True)
class Program:
    """How a zygote is started, and what its children do."""

    prepare: str
    """A function as ``"module:name"``, which the zygote calls; what it gives is called in every child, with
    the numbers of its descriptors."""
    argument: Any
    """What it is called with; pickled."""
    environ: Mapping[str, str]
    """The environment variables of the zygote and its children."""
    command: Sequence[str] = (sys.executable, "-u", "-m", "envweave_gym.sandbox.inside.zygote")
    """What is run; the number of a descriptor is added."""
    path: Sequence[str] | None = None
    """Where it imports from, where that is not its own affair."""
    folder: str | None = None
    """What it removes at its end."""
    is_direct: bool = True
    """Whether ``command`` is the zygote itself, and not something around it."""


class Fork:
    """A child of the zygote, and the socket that it listens to."""

    def __init__(
        self, key: int, connection: socket.socket, zygote: _Zygote, *, is_expected: bool = False
    ) -> None:
        self.connection, self._is_expected = connection, is_expected
        self.ended: str | None = None
        """How it ended, in words."""
        self.seconds, self.memory = 0.0, 0
        """The processor time it took, and the most memory in kilobytes, once it has ended."""
        self.refused = False
        """Whether it never was: the system did not give another process."""
        self._key, self._zygote = key, zygote
        self._over, self._adopted = threading.Event(), threading.Event()

    def has_zygote(self) -> bool:
        """Whether the zygote that has forked it goes on; if not it ends too, or has ended."""
        return self._zygote.is_there()

    def kill(self) -> None:
        """Kill it; what is only expected is given up."""
        if self._is_expected:
            self.give_up()
        else:
            self._zygote.order(KILL, self._key)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it has ended."""
        return self._over.wait(seconds)

    def expect(self, connection: socket.socket) -> Fork:
        """What this child is about to fork itself, to be adopted or given up."""
        return self._zygote.expect(connection)

    def adopt(self, pid: int) -> None:
        """It is there; ``pid`` is the number that the zygote sees, which tells of its end from now on.

        ``OSError`` where that is no process to adopt.
        """
        self._is_expected = False
        self._zygote.order(ADOPT, self._key, PID.pack(pid))
        if not self._adopted.wait(_ADOPTING) or self.ended is not None:
            raise OSError(f"its copy {self.ended or f'was not adopted within {_ADOPTING:g} s'}")

    def was_adopted(self) -> None:
        """Let who waits for that go on."""
        self._adopted.set()

    def give_up(self) -> None:
        """It will not be there."""
        if self._over.is_set() or not self._is_expected:
            return
        self._zygote.order(GIVE_UP, self._key)
        self._zygote.forget(self._key)
        self.end("was never there")

    def end(self, words: str) -> None:
        """Take down how it ended, and wake who waits for an answer.

        Processes that it has started may hold its end of the socket, which would then stay open.
        """
        self.ended = words
        self._over.set()
        self._adopted.set()
        with suppress(OSError):  # closed already
            self.connection.shutdown(socket.SHUT_RDWR)


def has_ended(pidfd: int) -> bool:
    """Whether a process has ended; one that is not known yet (-1) has not."""
    if pidfd < 0:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


class ForkServer:
    """Gives children of a zygote that is started when the first is wanted."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._zygote: _Zygote | None = None
        self._closed = False
        self._lock = threading.Lock()

    def fork(self, *more: int) -> Fork:
        """A new child, whose descriptors are a socket and these."""
        zygote = self._running()
        ours, theirs = socket.socketpair()
        with theirs:
            return zygote.fork(ours, [theirs.fileno(), *more])

    def has_zygote(self) -> bool:
        """Whether there is a zygote that goes on."""
        return self._zygote is not None and self._zygote.is_there()

    def _running(self) -> _Zygote:
        with self._lock:
            if self._closed:
                raise NotAvailable("no process is forked any more: the server is stopping; use another")
            if self._zygote is None or not self._zygote.is_there():
                self._zygote = _Zygote(self._program)
                weakref.finalize(self, self._zygote.stop)
            zygote = self._zygote
        if not zygote.ready.wait(_STARTING):
            zygote.kill_it()
            raise NotAvailable(
                f"no process can be forked: what is served was not imported within {_STARTING:g} s"
            )
        return zygote

    def close(self) -> None:
        """End the zygote and all its children, for good.

        When this returns they are gone; only for what even SIGKILL does not end it waits no longer.
        """
        with self._lock:
            self._closed, zygote = True, self._zygote
        if zygote is not None:
            zygote.stop()
            if not zygote.over.wait(_ENDING):
                zygote.kill_it()
                zygote.over.wait(_ENDING)


class _Zygote:
    """One run of the zygote; a thread of its own starts it and listens to it until it ends.

    Linux takes the thread that started a process for its parent, so that has to be one that stays.
    """

    def __init__(self, program: Program) -> None:
        self.ready, self.over = threading.Event(), threading.Event()
        self.ended: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._unwanted = False
        self._failure: OSError | None = None
        self._cannot = ""
        """Why it could not get ready."""
        self._owner = Owner()
        self._forks: dict[int, Fork] = {}
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        live = threading.Thread(target=self._live, args=(program, theirs), name="zygote", daemon=True)
        live.start()

    def is_there(self) -> bool:
        """Whether it goes on, or is about to start, as the kernel says: its end may not be noted here yet."""
        with self._lock:
            return self.ended is None and not has_ended(self._pidfd)

    def fork(self, ours: socket.socket, theirs: list[int]) -> Fork:
        """A new child, which gets the descriptors ``theirs``."""
        key, fork = self._noted(ours)
        with suppress(OSError):  # its end is told to all forks
            socket.send_fds(self._control, [PACKET.pack(FORK, key)], theirs)
        return fork

    def expect(self, ours: socket.socket) -> Fork:
        """A new child that another child forks."""
        key, fork = self._noted(ours, is_expected=True)
        self.order(EXPECT, key)
        return fork

    def _noted(self, ours: socket.socket, *, is_expected: bool = False) -> tuple[int, Fork]:
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
        """Tell the zygote something of a child; its end is told to all forks."""
        with suppress(OSError):
            self._control.send(PACKET.pack(what, key) + more)

    def forget(self, key: int) -> None:
        """There is no such child."""
        with self._lock:
            self._forks.pop(key, None)

    def stop(self) -> None:
        """Let it end; a process that was forked from the host has no say in this."""
        if self._owner.is_here():
            self._unwanted = True
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)

    def kill_it(self) -> None:
        """Kill it, or see that it is never started; the kernel kills its children."""
        if self._owner.is_here():
            with self._lock:
                self._unwanted, process = True, self._process
            if process is not None:
                process.kill()

    def _live(self, program: Program, theirs: socket.socket) -> None:
        words = "was not started"
        try:
            with theirs:
                with self._lock:
                    if self._unwanted:
                        return
                    self._process = process = _start(program, theirs)
                    self._pidfd = os.pidfd_open(process.pid)
                _tell(process, program)
            with suppress(ConnectionError):  # it has not read all orders
                while note := self._control.recv(_PACKET):
                    self._hear(note)
            words = describe_exit(process.wait())
            words = f"cannot begin: {self._cannot}" if self._cannot else words
        except OSError as error:
            self._failure = error
        finally:
            self._over(words)

    def _hear(self, note: bytes) -> None:
        what, key = PACKET.unpack_from(note)
        if what == READY:
            self.ready.set()
            return
        if key == 0:
            self._cannot = note[PACKET.size :].decode()
            return
        with self._lock:
            fork = self._forks.get(key) if what == ADOPTED else self._forks.pop(key, None)
        if fork is None:  # it was given up
            return
        if what == ADOPTED:
            fork.was_adopted()
            return
        if what == FAILED:
            fork.refused = True
            fork.end(note[PACKET.size :].decode())
        else:
            code, fork.seconds, fork.memory = END.unpack_from(note, PACKET.size)
            fork.end(describe_exit(code))

    def _over(self, words: str) -> None:
        with self._lock:
            self.ended = words
            forks, self._forks = list(self._forks.values()), {}
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
        self._control.close()
        self.ready.set()
        for fork in forks:
            fork.end(f"ended with the zygote, which {words}")
        self.over.set()


def _start(program: Program, control: socket.socket) -> subprocess.Popen[bytes]:
    """Run the program. What it and its children write goes where the host writes errors."""
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


def _tell(process: subprocess.Popen[bytes], program: Program) -> None:
    """Say what it is for."""
    start = {
        "host": os.getpid() if program.is_direct else None,
        "path": program.path,
        "environ": program.environ,
        "prepare": program.prepare,
        "folder": program.folder,
    }
    with suppress(BrokenPipeError), cast("IO[bytes]", process.stdin) as source:
        source.write(pickle.dumps(start, _PICKLE) + pickle.dumps(program.argument, _PICKLE))
