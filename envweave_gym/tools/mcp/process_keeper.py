"""Keeps one server: starts it, and ends it with all that it has started when its owner says so or has ended.

A program of its own, run by path and without site packages, which imports nothing but the standard library.
Its arguments are the descriptor of a pipe and the command. The owner holds the other end of the pipe: when it
writes or closes, whichever way the owner ends, the server gets TERM after a while, and KILL. What a server
starts in sessions of its own, as those that drive a browser do, becomes a child of the keeper and ends too.

What the server writes to stderr is read all the time; its end, and how the server ended, are the keeper's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

GRACE = 0.5
"""Seconds that a server may take to end after its stdin closed, and again after SIGTERM."""
LONGEST_TAIL = 8192
"""Bytes of a server's stderr that are retained."""
CANNOT_START = 127
"""The exit code where there is no such program, as that of a shell."""

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Keep the server until it, or its owner, ends."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    _prctl(_SET_CHILD_SUBREAPER, 1)
    signals, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    os.set_inheritable(owner, False)
    errors, stderr = os.pipe()
    keeper = os.getpid()
    server = os.fork()
    if server == 0:
        _become(command, stderr, keeper)
    os.close(stderr)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    kept = Kept(server, owner, errors, signals)
    code = kept.wait()
    kept.end_all()
    with suppress(BrokenPipeError):  # nobody is left to read it
        os.write(2, kept.tail())
    _end_like(code)


class Kept:
    """A server that runs, and what is heard of it."""

    def __init__(self, server: int, owner: int, errors: int, signals: int) -> None:
        """Descriptors to read: ``owner`` and ``signals`` are pipes, ``errors`` is the server's stderr."""
        self._server, self._owner, self._errors, self._signals = server, owner, errors, signals
        self._tail = bytearray()
        self._code: int | None = None
        self._poll = select.poll()
        for descriptor in (owner, errors, signals):
            self._poll.register(descriptor, select.POLLIN)

    def wait(self) -> int:
        """How the server has ended, by itself or because it had to."""
        how, until = signal.SIGTERM, None
        while self._code is None:
            if until is not None and time.monotonic() >= until:
                self._send(how)
                how, until = signal.SIGKILL, time.monotonic() + GRACE
            if self._hear(until):
                until = time.monotonic() + GRACE
        return self._code

    def _hear(self, until: float | None) -> bool:
        """Hear what there is, or comes until then; whether the owner has let go."""
        let_go = False
        wait = None if until is None else max(0, int((until - time.monotonic()) * 1000) + 1)
        for descriptor, _ in self._poll.poll(wait):
            if descriptor == self._errors:
                self._read_errors()
            elif descriptor == self._signals:
                os.read(self._signals, 512)
            else:
                self._poll.unregister(descriptor)
                let_go = True
        self._reap()
        return let_go

    def _read_errors(self) -> None:
        piece = os.read(self._errors, 1 << 16)
        self._tail += piece
        del self._tail[:-LONGEST_TAIL]
        if not piece:
            self._poll.unregister(self._errors)

    def _reap(self) -> bool:
        """Take notice of those that have ended; whether there are no others."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if child == 0:
                return False
            if child == self._server:
                self._code = os.waitstatus_to_exitcode(status)

    def _send(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._server, how)

    def end_all(self) -> None:
        """End what the server has left behind."""
        self._send(signal.SIGKILL)
        until = time.monotonic() + GRACE
        while not self._reap() and time.monotonic() < until:
            for child in _children():
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)

    def tail(self) -> bytes:
        """The end of what the server has written to stderr."""
        os.set_blocking(self._errors, False)
        try:
            while piece := os.read(self._errors, 1 << 16):
                self._tail += piece
        except BlockingIOError:
            pass
        return bytes(self._tail[-LONGEST_TAIL:])


def _become(command: list[str], stderr: int, keeper: int) -> None:
    """Be the server: in a process group of its own, which ends with the keeper."""
    try:
        os.setpgid(0, 0)
        _prctl(_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(CANNOT_START)
        signal.set_wakeup_fd(-1)
        for restored in (*_RESTORED, signal.SIGCHLD):
            signal.signal(restored, signal.SIG_DFL)
        os.dup2(stderr, 2)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(stderr, f"{command[0]}: {error.strerror}".encode())
    finally:
        os._exit(CANNOT_START)


def _children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except FileNotFoundError:  # a kernel that does not list them
        return []


def _prctl(option: int, value: int) -> None:
    """Ask it of Linux; elsewhere the process group is all that is ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_like(code: int) -> None:
    """End as the server has: with its exit code, or by the signal that killed it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
