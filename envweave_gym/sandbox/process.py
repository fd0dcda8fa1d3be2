"""The host's side of a worker: its process, channel, output and folder. What it says is not trusted."""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

from envweave_gym.faults import EnvweaveError
from envweave_gym.sandbox.forkserver import Fork
from envweave_gym.sandbox.inside.channel import LENGTH, Message
from envweave_gym.sandbox.notifications import Forks
from envweave_gym.sandbox.output import Output
from envweave_gym.sandbox.result import Limits

_LARGEST = 8 << 20
_STARTING = 20.0
"""So many seconds a worker has to put its policy over itself."""
_DYING = 5.0
_CREDENTIALS = struct.Struct("iii")


class WorkerDied(EnvweaveError):
    """The process of an episode has ended, or does not keep to what was agreed and was killed."""


class WorkerProcess:
    """One worker that is ready for orders."""

    def __init__(
        self, fork: Fork, out: int, err: int, folder: str, limits: Limits, forks: Forks | None = None
    ) -> None:
        self.folder = folder
        self.out, self.err = Output(out, limits.output), Output(err, limits.output)
        self.forks = forks
        self.layers: list[str] = []
        self.fork, self._socket = fork, fork.connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._buffer = bytearray()
        self._pidfd = -1
        self._is_frozen = False

    def fileno(self) -> int:
        """The channel."""
        return self._socket.fileno()

    # How it begins

    def meet(self) -> int:
        """Wait until it is ready; the number that it knows itself by."""
        self._socket.settimeout(_STARTING)
        try:
            hello, pid, descriptors = self._hello()
            self._pidfd = os.pidfd_open(pid)
            self.layers = [str(layer) for layer in hello["layers"]]
            if descriptors:
                self.forks = Forks(descriptors[0])
        except (TimeoutError, KeyError, ValueError, OSError) as error:
            self.kill()
            raise WorkerDied(f"a worker did not start: {self._ended() or error}") from None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        self._socket.setblocking(False)
        return int(hello["pid"])

    def _hello(self) -> tuple[Message, int, list[int]]:
        """The first frame, with the process that has sent it, as the kernel says, and its descriptors."""
        sender, descriptors = 0, array.array("i")
        room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(descriptors.itemsize)
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
            if not data:
                raise OSError("it has ended")
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    sender = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(content[: descriptors.itemsize])
            self._buffer += data
            for message in self._frames():
                if message["ev"] == "failed":
                    raise OSError(message["why"])
                return message, sender, list(descriptors)

    # What is said

    def send(self, message: Message) -> None:
        """Send an order or a reply; :class:`WorkerDied` where it does not take it."""
        data = json.dumps(message).encode()
        self._socket.settimeout(_STARTING)
        try:
            self._socket.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise self._lost(str(error)) from None
        finally:
            self._socket.setblocking(False)

    def send_descriptors(self, descriptors: list[int]) -> None:
        """Send descriptors that an order has announced."""
        try:
            socket.send_fds(self._socket, [b"d"], descriptors)
        except OSError as error:
            raise self._lost(str(error)) from None

    def receive(self) -> list[Message]:
        """The frames that have come; :class:`WorkerDied` where no more will."""
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError as error:
            raise self._lost(str(error)) from None
        if not data:
            raise self._lost("it has closed its channel")
        self._buffer += data
        try:
            return list(self._frames())
        except (ValueError, RecursionError) as error:
            raise self._lost(f"what it sent is no frame: {error}") from None

    def _frames(self) -> Iterator[Message]:
        while len(self._buffer) >= LENGTH.size:
            length = LENGTH.unpack_from(self._buffer)[0]
            if length > _LARGEST:
                raise ValueError(f"{length} bytes, and a frame has at most {_LARGEST}")
            if len(self._buffer) < LENGTH.size + length:
                return
            frame = json.loads(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            if not isinstance(frame, dict):
                raise ValueError("it is no object")
            yield frame

    def await_(self, event: str) -> Message:
        """Wait for what comes of an order that is no step; forks that it takes are answered meanwhile."""
        until = time.monotonic() + _STARTING
        polled = [self.fileno(), *([self.forks.descriptor] if self.forks is not None else ())]
        while (left := until - time.monotonic()) > 0:
            ready = select.select(polled, [], [], left)[0]
            if self.forks is not None and self.forks.descriptor in ready:
                self.forks.answer()
            for message in self.receive() if self.fileno() in ready else ():
                if message.get("ev") == event:
                    return message
        raise self._lost(f"it has not {event} within {_STARTING:g} s")

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

    def _lost(self, why: str) -> WorkerDied:
        """What to raise where it is of no use any more; it is killed, if it has not ended itself."""
        ended = self._ended(0.2)
        if ended is None:
            self.kill()
            self._ended(_DYING)
        return WorkerDied(ended or f"was killed, as {why}")

    def _ended(self, seconds: float = 0.0) -> str | None:
        """How it ended, if it has, or does within so many seconds."""
        return self.fork.ended if self.fork.wait(seconds) else None

    def gone(self) -> None:
        """Wait until one that was killed has ended."""
        self._ended(_DYING)

    def threads(self) -> int:
        """How many threads it has, as the kernel says."""
        return len(os.listdir(f"/proc/{_pid_of(self._pidfd)}/task"))

    def close(self) -> None:
        """Kill it, and let go of all it had but its folder."""
        self.kill()
        self._socket.close()
        self.out.close()
        self.err.close()
        if self.forks is not None:
            self.forks.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _pid_of(pidfd: int) -> int:
    """The number of a process, as this one sees it."""
    with open(f"/proc/self/fdinfo/{pidfd}") as lines:
        found = dict(line.split(":", 1) for line in lines)
    return int(found["Pid"])
