"""The host's side of a worker: its process, channel, output and folder. What it says is not trusted."""

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import EnvweaveError, NotAvailable
from envweave_gym.os_support.process_local import Owner
from envweave_gym.sandbox.forkserver import Fork, has_ended
from envweave_gym.sandbox.inside.channel import LENGTH, Message
from envweave_gym.sandbox.inside.kernel import children, kill_trees
from envweave_gym.sandbox.memory_groups import MemoryGroup
from envweave_gym.sandbox.notifications import Forks
from envweave_gym.sandbox.output import Output

_LARGEST, _VALUES = 24 << 20, 500_000
"""So many bytes a frame may have, and so many values: a list of lists takes thirty times its bytes."""
_LOOKED_AT = 1 << 16
"""Frames of fewer bytes have not so many values that they need be counted."""
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_UNREAD = 1 << 20
"""So many bytes a worker may leave unread until it is not listened to."""
_STARTING, _ANSWERING = 20.0, 10.0
"""So many seconds a worker has to put its policy over itself, and to answer an order that is no step."""
_DYING, _STOPPING = 5.0, 5.0
_STILL = (b"T", b"t", b"Z", b"X")
"""The states of threads that are stopped, or have ended."""
_LONGEST = 1000
_CREDENTIALS = struct.Struct("iii")
_READ, _BOTH, _WRITE = select.POLLIN, select.POLLIN | select.POLLOUT, select.POLLOUT


SIZE = "size of the frame"
"""The key of a message at which this process notes how many bytes it had."""


class WorkerDied(EnvweaveError):
    """The process of an episode has ended, or does not keep to what was agreed and was killed."""


class WorkerProcess:
    """One worker that is ready for orders."""

    def __init__(self, fork: Fork, out: Output, err: Output, folder: str, forks: Forks | None = None) -> None:
        """``forks`` are those of the process that this one is a copy of."""
        self._is_let_go, self._owner = True, Owner()
        self.folder, self.forks = folder, forks
        self.out, self.err = out, err
        self.layers: list[str] = []
        self.memory: MemoryGroup | None = None
        """The cgroup that it is in, which goes with it."""
        self.fork, self._socket = fork, fork.connection
        # where it is forgotten in a circle the socket might go first, which Python complains of
        weakref.finalize(self, fork.connection.close).atexit = False
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.setblocking(False)
        self._received, self._unsent = bytearray(), bytearray()
        self._pid, self._pidfd = 0, -1
        self._is_frozen = False
        self._wake, self._waking = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), threading.Lock()
        self._poll, self._listens_for = select.poll(), _READ
        for descriptor in (self._socket.fileno(), out.descriptor, err.descriptor, self._wake):
            self._poll.register(descriptor, _READ)
        if forks is not None:
            self._poll.register(forks.descriptor, _READ)
        self._is_let_go = False

    def is_there(self) -> bool:
        """Whether it goes on and will, as the kernel says: it ends with its zygote."""
        return self.fork.ended is None and not has_ended(self._pidfd) and self.fork.has_zygote()

    # How it begins

    def meet(self, *, is_trusted: bool = False) -> None:
        """Wait until it is ready, and see which process it is.

        What is trusted, as no program has run in it, may give the descriptor that its forks are asked of.
        """
        try:
            hello, self._pid, descriptors = self._hello(int(is_trusted))
            for descriptor in descriptors:
                self.forks = Forks(descriptor)
                self._poll.register(descriptor, _READ)
            self._pidfd = os.pidfd_open(self._pid)
            self.layers = [str(layer) for layer in hello["layers"]]
        except (KeyError, TypeError, ValueError, RecursionError, OSError) as error:
            raise WorkerDied(f"a worker did not start: {self._ended() or error}") from None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)

    def _hello(self, wanted: int) -> tuple[Message, int, list[int]]:
        """The first frame, who has sent it, as the kernel says, and ``wanted`` of its descriptors."""
        sender, until = 0, time.monotonic() + _STARTING
        given: list[int] = []
        try:
            while True:
                data, sender, more = self._greeting(until)
                given += more
                self._received += data
                for message in self._frames():
                    if message["ev"] == "failed":
                        raise OSError(str(message["why"])[:_LONGEST])
                    kept, given = given[:wanted], given[wanted:]
                    return message, sender, kept
        finally:
            for descriptor in given:
                os.close(descriptor)

    def _greeting(self, until: float) -> tuple[bytes, int, list[int]]:
        """A piece of the first frame."""
        sender, descriptors = 0, array.array("i")
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(descriptors.itemsize)
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                self._turn(until - time.monotonic())
                if time.monotonic() > until:
                    raise OSError(f"it has said nothing within {_STARTING:g} s") from None
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                sender = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        if not data:
            raise OSError("it has ended")
        return data, sender, list(descriptors)

    def inner_pid(self) -> int:
        """The number of the process in the innermost of its namespaces, which is that of the zygote."""
        with open(f"/proc/{self._pid}/status") as lines:
            numbers = [line.split()[-1] for line in lines if line.startswith("NSpid:")]
        return int(numbers[0]) if numbers else self._pid

    # What is said

    def send(self, message: Message) -> None:
        """Send an order, as far as it is taken now; the rest goes out while something is awaited."""
        self.send_text(json.dumps(message))

    def send_text(self, text: str) -> None:
        """Send what is JSON already."""
        data = text.encode()
        self._unsent += LENGTH.pack(len(data)) + data
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(str(error)) from None
        wanted = _READ if not self._unsent else _BOTH if len(self._unsent) < _UNREAD else _WRITE
        if wanted != self._listens_for:
            self._listens_for = wanted
            self._poll.modify(self._socket.fileno(), wanted)

    def send_descriptors(self, descriptors: list[int]) -> None:
        """Send descriptors that an order has announced."""
        try:
            socket.send_fds(self._socket, [b"d"], descriptors)
        except OSError as error:
            raise self._lost(str(error)) from None

    def wake(self) -> None:
        """From another thread: let :meth:`turn` come back."""
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def turn(self, seconds: float) -> list[Message]:
        """Wait so long for something to happen, see to it, and give the frames that have come.

        :class:`WorkerDied` where no more will.
        """
        return self._receive() if self._turn(seconds) else []

    def _turn(self, seconds: float) -> bool:
        """Wait so long, and see to all but what has come on the channel; whether something has."""
        is_heard, channel = False, self._socket.fileno()
        for descriptor, event in self._poll.poll(max(seconds, 0.0) * 1000):
            if descriptor == channel:
                if event & _WRITE:
                    self._flush()
                is_heard = bool(event & ~_WRITE)
            elif descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif self.forks is not None and descriptor == self.forks.descriptor:
                self._answer_forks(event)
            else:
                self._read(self.out if descriptor == self.out.descriptor else self.err)
        return is_heard

    def _read(self, stream: Output) -> None:
        stream.read()
        if stream.is_over:  # what is always ready would keep this from ever waiting
            self._poll.unregister(stream.descriptor)

    def _answer_forks(self, event: int) -> None:
        if self.forks is not None and event & _READ:
            self.forks.answer()
        elif self.forks is not None:
            self._poll.unregister(self.forks.descriptor)

    def _receive(self) -> list[Message]:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._lost(str(error)) from None
        if not data:
            raise self._lost("it has closed its channel")
        self._received += data
        try:
            return list(self._frames())
        except (ValueError, RecursionError) as error:
            raise self._lost(f"what it sent is no frame: {error}") from None

    def _frames(self) -> Iterator[Message]:
        while len(self._received) >= LENGTH.size:
            length = LENGTH.unpack_from(self._received)[0]
            if length > _LARGEST:
                raise ValueError(f"{length} bytes, and a frame has at most {_LARGEST}")
            if len(self._received) < LENGTH.size + length:
                return
            data = self._received[LENGTH.size : LENGTH.size + length]
            del self._received[: LENGTH.size + length]
            message = _frame(data)
            message[SIZE] = length
            yield message

    def await_(self, event: str) -> Message:
        """Wait for what comes of an order that is no step; ``NotAvailable`` where it cannot be done."""
        until = time.monotonic() + _ANSWERING
        while (left := until - time.monotonic()) > 0:
            for message in self.turn(left):
                if message.get("ev") == event:
                    return message
                if message.get("ev") == "failed":
                    raise NotAvailable(str(message.get("why"))[:_LONGEST])
        raise self._lost(f"it has not {event} within {_ANSWERING:g} s")

    # How it is stopped

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there still."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def freeze(self) -> None:
        """Let it stand still: threads that it has left behind take nothing meanwhile."""
        self._is_frozen = True
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._is_frozen:
            self._is_frozen = False
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
        else:
            self.fork.kill()

    def kill_children(self) -> None:
        """Kill what its programs have started, and what that has left behind.

        A fork that is under way when its process is stopped is found when that has been killed.
        """
        until = time.monotonic() + _STOPPING
        while (left := {pid for pid in children(self._pid) if _lives(pid)}) and time.monotonic() < until:
            kill_trees(left)
            time.sleep(0.001)

    def _lost(self, why: str) -> WorkerDied:
        """What to raise where it is of no use any more; it is killed, if it has not ended itself."""
        ended = self._ended(0.2)
        if ended is None:
            self.kill()
            self._ended(_DYING)
        if self.memory is not None and self.memory.has_killed():
            ended = f"{ended or 'was killed'}, as the episode took more memory than it may"
        return WorkerDied(ended or f"was killed, as {why}")

    def _ended(self, seconds: float = 0.0) -> str | None:
        """How it ended, if it has, or does within so many seconds."""
        return self.fork.ended if self.fork.wait(seconds) else None

    def gone(self) -> None:
        """Wait until one that was killed has ended."""
        self._ended(_DYING)

    def allow_a_copy(self) -> None:
        """Let it fork, once."""
        if self.forks is not None:
            self.forks.allow_a_copy(self._pid)

    def allow_none(self) -> None:
        """Do not let it fork."""
        if self.forks is not None:
            self.forks.allow_none(self._pid)

    def must_have_forked_nothing(self) -> None:
        """See that a permission to fork was used for the copy alone: what has other children is killed.

        A fork that was allowed may be under way; none is when all threads stand still.
        """
        if self.forks is None or not self.is_there():
            return
        self.freeze()
        until = time.monotonic() + _STOPPING
        while not (have_stopped := self._have_stopped()) and time.monotonic() < until:
            if children(self._pid):
                break
            time.sleep(0.0002)
        if children(self._pid) or not have_stopped:
            self.kill()
            self.gone()
            raise WorkerDied("was killed, as it has forked more than its copy")

    def _have_stopped(self) -> bool:
        """Whether none of its threads runs, as far as it is there."""
        with suppress(OSError):  # it has ended meanwhile
            for thread in Path(f"/proc/{self._pid}/task").iterdir():
                if (thread / "stat").read_bytes().rpartition(b")")[2].split()[0] not in _STILL:
                    return False
        return True

    def threads(self) -> int:
        """How many threads it has, as the kernel says."""
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self._pid}/task"))
        return 0

    def close(self) -> None:
        """Kill it, and let go of all it had but its folder; when this returns it has ended."""
        self.kill()
        self.gone()
        if self.memory is not None:
            self.memory.remove()
        self.let_go()

    def let_go(self) -> None:
        """Close what this process has of it."""
        self._is_let_go = True
        self._socket.close()
        self.out.close()
        self.err.close()
        if self.forks is not None:
            self.forks.close()
            self.forks = None
        with self._waking:
            os.close(self._wake)
            self._wake = -1
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def __del__(self) -> None:
        if self._is_let_go or sys.is_finalizing():
            return
        if self._owner.is_here():  # it is forgotten; a forked process only lets go of it
            self.kill()
        self.let_go()


def _lives(pid: int) -> bool:
    """Whether a process is there, and not only what is left of it."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def _frame(data: bytearray) -> Message:
    """What a frame says; ``ValueError`` where it says nothing, or too much."""
    if len(data) > _LOOKED_AT:
        bare = _TEXT.sub(b"", data)
        if sum(map(bare.count, (b",", b"[", b"{"))) > _VALUES:
            raise ValueError(f"it has more than {_VALUES} values")
    # decoded here, as json.loads would take UTF-16 and UTF-32 too, in which no comma was counted
    frame = json.loads(data.decode(errors="surrogatepass"), parse_constant=_no_json)
    if not isinstance(frame, dict):
        raise ValueError("it is no object")
    return frame


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
