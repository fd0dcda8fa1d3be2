"""Runs a program in a child process below a keeper: JSON lines over a socket, its output, its end.

The program's stdin is empty, and what it prints is retained for error messages only: packages print while they are
imported, and may read stdin. A keeper ends the program and its descendants when this process ends in any way.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support import process_keeper as keeper
from envweave_gym.os_support.process_local import in_forked_child

_KEEPER_PATIENCE_S = 4 * keeper.GRACE_S + 1.0
"""Seconds that the keeper may take to end the program and its descendants."""
_LAST_WAIT_S = 5.0
"""Seconds that killed processes may take to disappear."""
_TAIL_BYTES, _LONGEST_LINE_CHARS = 8192, 300
_PIECE_BYTES = 1 << 16
_MAX_MESSAGE_BYTES = 64 << 20


class Ended:
    """The last thing that a program's queue gets: how it ended, as a phrase with its last line of output."""

    def __init__(self, text: str) -> None:
        self.text = text


class ProgramProcess:
    """One program; its messages, and at last :class:`Ended`, are put into ``events``."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        events: queue.SimpleQueue[Any],
    ) -> None:
        """Start ``command`` in ``folder``; the descriptor of its socket is appended to the arguments."""
        self._events, self._tail = events, bytearray()
        read, write = os.pipe()
        self._lifeline = os.fdopen(write, "wb", buffering=0)
        self._socket, theirs = socket.socketpair()
        try:
            self._process = _started([*command, str(theirs.fileno())], read, theirs, environment, folder)
        except BaseException:
            self._lifeline.close()
            self._socket.close()
            raise
        finally:
            os.close(read)
            theirs.close()
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._closing = threading.RLock()
        self._is_closed = False
        in_forked_child(self, ProgramProcess._forget)
        self._reader = threading.Thread(target=self._read, name="program", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The PID of the keeper, whose descendants the program's processes are."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the program runs."""
        return not self._is_closed and self._process.poll() is None

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; one to a program that has ended is dropped, as its end is in the queue."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self, patience_s: float = 0.0) -> None:
        """End the program: ask it to, wait for ``patience_s``, then let the keeper end it with all its descendants."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            if patience_s and self._process.poll() is None:
                self.send({"do": "close"})
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)
            self._end()
            self._reader.join(_LAST_WAIT_S)
            self._socket.close()
            self._output.close()

    def _end(self) -> None:
        with suppress(BrokenPipeError):
            self._lifeline.write(b"!")  # a forked process may hold the pipe open
        self._lifeline.close()
        try:
            self._process.wait(_KEEPER_PATIENCE_S)
        except subprocess.TimeoutExpired:  # the keeper was stopped by a signal
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # in the kernel, for longer than anybody can wait
                self._process.wait(_LAST_WAIT_S)

    def _forget(self) -> None:
        """Close the descriptors in a forked process; they would keep the parent's program alive."""
        self._process.returncode = 0  # it is no child of this process, and Popen would wait for it
        self._is_closed = True
        self._lifeline.close()
        self._socket.close()
        self._output.close()

    # The thread that reads

    def _read(self) -> None:
        sockets = {self._socket.fileno(): self._socket, self._output.fileno(): None}
        poll, line = select.poll(), bytearray()
        for descriptor in sockets:
            poll.register(descriptor, select.POLLIN)
        while sockets:
            for descriptor, _ in poll.poll():
                data = _received(descriptor)
                if not data:
                    poll.unregister(descriptor)
                    del sockets[descriptor]
                elif sockets[descriptor] is None:
                    self._tail += data
                    del self._tail[:-_TAIL_BYTES]
                else:
                    line += data
                    if not self._deliver(line):
                        poll.unregister(descriptor)
                        del sockets[descriptor]
        self._events.put(Ended(self._describe()))

    def _deliver(self, line: bytearray) -> bool:
        """Put the whole messages of ``line`` into the queue and remove them; return whether to go on reading."""
        *whole, rest = line.split(b"\n") if b"\n" in line else [bytes(line)]
        line[:] = rest
        for one in whole:
            try:
                message = json.loads(one)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self._events.put(Ended(f"has sent what is no message: {bytes(one[:80])!r}"))
                return False
            self._events.put(message)
        if len(line) > _MAX_MESSAGE_BYTES:
            self._events.put(Ended(f"has sent a message of more than {_MAX_MESSAGE_BYTES >> 20} MB"))
            return False
        return True

    def _describe(self) -> str:
        deadline = time.monotonic() + _KEEPER_PATIENCE_S
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.005)  # its pipes close just before it ends
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last = f": {' '.join(lines[-1].split())[:_LONGEST_LINE_CHARS]}" if lines else ""
        return f"{'has closed its outputs' if code is None else keeper.describe_exit(code)}{last}"


def _received(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _PIECE_BYTES)
    except OSError:
        return b""


def _started(
    command: list[str], lifeline: int, peer: socket.socket, environment: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes]:
    supervisor = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(lifeline)]
    try:
        return subprocess.Popen(
            [*supervisor, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=folder,
            env=dict(environment),
            pass_fds=[lifeline, peer.fileno()],
            start_new_session=True,
        )
    except OSError as error:
        raise NotAvailable(f"{command[0]} cannot be started in {folder}: {error.strerror}") from None
