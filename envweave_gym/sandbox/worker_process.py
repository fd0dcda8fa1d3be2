"""The host process's side of a worker process: its socket, output and signals.

A program may forge the worker's messages, so all of them are checked.
"""

from __future__ import annotations

import array
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import EnvweaveError, NotAvailable
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.sandbox.fork_gate import ForkGate
from envweave_gym.sandbox.forkserver import Fork, has_ended
from envweave_gym.sandbox.inside.channel import LENGTH, Message
from envweave_gym.sandbox.inside.kernel import children, kill_trees
from envweave_gym.sandbox.memory_groups import MemoryGroup
from envweave_gym.sandbox.program_output import Output

FRAME_BYTES = "bytes of the frame"
"""Key in a received message under which the host stores the length of its frame in bytes."""
_MAX_FRAME_BYTES, _MAX_VALUES = 24 << 20, 500_000
"""Limits of a frame: bytes, and JSON values, as a parsed list of lists takes thirty times its bytes."""
_UNCOUNTED_BYTES = 1 << 16
"""Size in bytes up to which a frame cannot exceed the value limit, so that its values are not counted."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MAX_UNSENT_BYTES = 1 << 20
"""Limit of bytes that a worker has not read, above which the host stops reading the worker's messages."""
_START_TIMEOUT_S, _REPLY_TIMEOUT_S = 20.0, 10.0
_KILL_TIMEOUT_S = 5.0
_END_NOTICE_S = 0.2
"""Seconds that the host waits for the zygote's notice of a worker's end after the worker's socket was closed."""
_MAX_ERROR_CHARS = 1000
_CREDENTIALS = struct.Struct("iii")  # struct ucred: PID, UID, GID
_READ, _BOTH, _WRITE = select.POLLIN, select.POLLIN | select.POLLOUT, select.POLLOUT


class WorkerDied(EnvweaveError):
    """Raised when a worker process has ended, or was killed because it broke the protocol."""


class WorkerProcess:
    """Controls a forked worker: sends and receives messages, reads its output, and stops or kills it."""

    def __init__(
        self,
        fork: Fork,
        out: Output,
        err: Output,
        folder: str,
        memory: MemoryGroup | None,
        fork_gate: ForkGate | None = None,
    ) -> None:
        """Take over the socket, pipes and folder of a worker that was just forked.

        ``fork_gate`` allows or denies the worker's own forks. A copy gets that of its original; a worker that was
        forked from the zygote sends the descriptor for a new one with its first message.
        """
        self._is_released = True  # so that __del__ does nothing if this constructor raises
        self.folder, self.memory, self.fork_gate = folder, memory, fork_gate
        self.out, self.err = out, err
        self.layers: list[str] = []
        """The names of the confinement layers in force, as the worker reported them."""
        self.pid = 0
        self.fork, self._socket = fork, fork.connection
        # The garbage collector may free the socket before this object, and Python would warn that it is open.
        weakref.finalize(self, fork.connection.close).atexit = False
        # the kernel adds the PID of each sender: one in a message could be forged
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._received, self._unsent = bytearray(), bytearray()
        self._pidfd = -1
        self._is_frozen = False
        self._wake, self._wake_lock = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), threading.Lock()
        self._poll, self._polled = select.poll(), _READ
        for descriptor in (self._socket.fileno(), out.descriptor, err.descriptor, self._wake):
            self._poll.register(descriptor, _READ)
        if fork_gate is not None:
            self._poll.register(fork_gate.descriptor, _READ)
        self._is_released = False
        in_forked_child(self, WorkerProcess._after_fork)

    def is_alive(self) -> bool:
        """Return whether the kernel still runs the process and its zygote, whose death kills the process."""
        return self.fork.ended is None and not has_ended(self._pidfd) and self.fork.has_zygote()

    # Start

    def await_hello(self, *, is_trusted: bool = False) -> None:
        """Wait for the worker's first message; take its PID from the socket's credentials, which cannot be forged.

        Only a trusted worker, in which no program has run yet, may send the descriptor that controls its forks.
        Raise :class:`WorkerDied` if the worker does not start.
        """
        try:
            hello, self.pid, descriptors = self._receive_hello(int(is_trusted))
            for descriptor in descriptors:
                self.fork_gate = ForkGate(descriptor)
                self._poll.register(descriptor, _READ)
            self._pidfd = os.pidfd_open(self.pid)
            self.layers = [str(layer) for layer in hello["layers"]]
        except (KeyError, TypeError, ValueError, RecursionError, OSError) as error:
            raise WorkerDied(f"a worker did not start: {self.ending() or error}") from None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)

    def _receive_hello(self, wanted: int) -> tuple[Message, int, list[int]]:
        """Return the first message, its sender's PID, and at most ``wanted`` of its descriptors; close the others."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        given: list[int] = []
        try:
            while True:
                data, sender, more = self._receive_with_credentials(deadline)
                given += more
                self._received += data
                for message in self._take_messages():
                    if message["ev"] == "failed":
                        raise OSError(str(message["why"])[:_MAX_ERROR_CHARS])
                    taken, given = given[:wanted], given[wanted:]
                    return message, sender, taken
        finally:
            for descriptor in given:  # a copy may send any number of them
                os.close(descriptor)

    def _receive_with_credentials(self, deadline: float) -> tuple[bytes, int, list[int]]:
        sender, descriptors = 0, array.array("i")
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(descriptors.itemsize)
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                self._wait(deadline - time.monotonic())
                if time.monotonic() > deadline:
                    raise OSError(f"no message within {_START_TIMEOUT_S:g} s") from None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                sender = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if not data:
            raise OSError("it has ended")
        return data, sender, list(descriptors)

    def inner_pid(self) -> int:
        """Return the worker's PID as seen in the PID namespace of the zygote."""
        with open(f"/proc/{self.pid}/status") as lines:
            numbers = [line.split()[-1] for line in lines if line.startswith("NSpid:")]
        return int(numbers[0]) if numbers else self.pid

    # Messages

    def send(self, message: Message | str) -> None:
        """Send a message, given as an object or as JSON; bytes that do not fit are sent during :meth:`receive`."""
        data = (message if isinstance(message, str) else json.dumps(message)).encode()
        self._unsent += LENGTH.pack(len(data)) + data
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._died(str(error)) from None
        # a worker that writes and does not read would otherwise fill the memory of this process
        polled = _READ if not self._unsent else _BOTH if len(self._unsent) < _MAX_UNSENT_BYTES else _WRITE
        if polled != self._polled:
            self._polled = polled
            self._poll.modify(self._socket.fileno(), polled)

    def send_descriptors(self, descriptors: list[int]) -> None:
        """Send the descriptors that the worker waits for after the last message."""
        try:
            socket.send_fds(self._socket, [b"d"], descriptors)
        except OSError as error:
            raise self._died(str(error)) from None

    def wake(self) -> None:
        """Let a running :meth:`receive` return; other threads call this."""
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def receive(self, timeout_s: float) -> list[Message]:
        """Wait for any event and handle it; return the messages that have arrived, often none.

        Raise :class:`WorkerDied` if the channel is closed or a frame is invalid.
        """
        if not self._wait(timeout_s):
            return []
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._died(str(error)) from None
        if not data:
            raise self._died("it has closed its channel")
        self._received += data
        try:
            return self._take_messages()
        except (ValueError, RecursionError) as error:
            raise self._died(f"it sent an invalid frame: {error}") from None

    def _wait(self, timeout_s: float) -> bool:
        """Poll once and handle everything but messages; return whether the channel is readable."""
        is_readable, channel = False, self._socket.fileno()
        for descriptor, event in self._poll.poll(max(timeout_s, 0.0) * 1000):
            if descriptor == channel:
                if event & _WRITE:
                    self._flush()
                is_readable = bool(event & ~_WRITE)
            elif descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif self.fork_gate is not None and descriptor == self.fork_gate.descriptor:
                if event & _READ:
                    self.fork_gate.answer()
                else:  # no process is behind the gate any more, which poll() would report for ever
                    self._poll.unregister(descriptor)
            else:
                stream = self.out if descriptor == self.out.descriptor else self.err
                stream.read()
                if stream.is_closed:  # a closed pipe is always readable, and poll would never wait again
                    self._poll.unregister(descriptor)
        return is_readable

    def _take_messages(self) -> list[Message]:
        found: list[Message] = []
        while len(self._received) >= LENGTH.size:
            length = LENGTH.unpack_from(self._received)[0]
            if length > _MAX_FRAME_BYTES:
                raise ValueError(f"{length} bytes, and a frame has at most {_MAX_FRAME_BYTES}")
            if len(self._received) < LENGTH.size + length:
                break
            message = _decoded(self._received[LENGTH.size : LENGTH.size + length])
            del self._received[: LENGTH.size + length]
            message[FRAME_BYTES] = length
            found.append(message)
        return found

    def await_reply(self, event: str) -> Message:
        """Wait for the message ``event``, the reply to a command; raise ``NotAvailable`` if the worker refuses it."""
        deadline = time.monotonic() + _REPLY_TIMEOUT_S
        while (left := deadline - time.monotonic()) > 0:
            for message in self.receive(left):
                if message.get("ev") == event:
                    return message
                if message.get("ev") == "failed":
                    raise NotAvailable(str(message.get("why"))[:_MAX_ERROR_CHARS])
        raise self._died(f"it has not {event} within {_REPLY_TIMEOUT_S:g} s")

    # Signals

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP, so that threads left by a program use no processor time."""
        self._is_frozen = True
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the process after :meth:`freeze`."""
        if self._is_frozen:
            self._is_frozen = False
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
        else:
            self.fork.kill()

    def kill_children(self) -> None:
        """Kill the processes that the programs have started, with all descendants.

        It is repeated until none is left: a process may have forked just before it was killed.
        """
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while (
            left := {pid for pid in children(self.pid) if _is_running(pid)}
        ) and time.monotonic() < deadline:
            kill_trees(left)
            time.sleep(0.001)

    def _died(self, why: str) -> WorkerDied:
        """Kill the process if it still runs; return the exception to raise, with the reason of its end."""
        ending = self.ending(_END_NOTICE_S)
        if ending is None:
            self.kill()
            self.ending(_KILL_TIMEOUT_S)
        if self.memory is not None and self.memory.has_killed():
            ending = f"{ending or 'was killed'}, as the episode exceeded its memory limit"
        return WorkerDied(ending or f"was killed, as {why}")

    def ending(self, timeout_s: float = 0.0) -> str | None:
        """Wait up to ``timeout_s`` for the process's end; return the phrase on how it ended, or ``None``."""
        return self.fork.ended if self.fork.wait(timeout_s) else None

    def thread_count(self) -> int:
        """Return the kernel's count of the process's threads; 0 if it has ended."""
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self.pid}/task"))
        return 0

    # End

    def close(self) -> None:
        """Kill the process, wait for its end, and release everything except its folder."""
        self.kill()
        self.ending(_KILL_TIMEOUT_S)
        if self.memory is not None:  # a cgroup with a process in it cannot be removed
            self.memory.remove()
        self.release()

    def release(self) -> None:
        """Close all descriptors that this process holds for the worker; a second call does nothing."""
        if self._is_released:
            return
        self._is_released = True
        self._socket.close()
        self.out.close()
        self.err.close()
        if self.fork_gate is not None:
            self.fork_gate.close()
            self.fork_gate = None
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _after_fork(self) -> None:
        """Close the descriptors in a forked child of the host process.

        The locks are replaced first, because a thread of the parent may have held them at the fork.
        """
        self._wake_lock = threading.Lock()
        if self.fork_gate is not None:
            self.fork_gate.renew_lock()
        self.release()

    def __del__(self) -> None:
        if not self._is_released and not sys.is_finalizing():
            self.kill()
            self.release()


def _is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def _decoded(data: bytearray) -> Message:
    """Parse a frame; raise ``ValueError`` if it is not a JSON object or has too many values."""
    if len(data) > _UNCOUNTED_BYTES:
        bare = _STRING.sub(b"", data)
        if sum(map(bare.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES} values")
    # As bytes, json.loads would also accept UTF-16 and UTF-32, in which the commas were not counted.
    frame = json.loads(data.decode(errors="surrogatepass"), parse_constant=_refuse_constant)
    if not isinstance(frame, dict):
        raise ValueError("it is not a JSON object")
    return frame


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
