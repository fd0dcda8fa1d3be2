"""The zygote: a process with a single thread that imports everything once and is forked for each worker.

The host process (``forkserver.py``) starts it with the descriptor number of a control socket. From standard input
the zygote reads the import path, the name of a function ``prepare``, and that function's argument. It calls
``prepare`` once. Every child calls the result with the list of its descriptors.

Commands of the host process come as packets over the control socket: fork (with the child's descriptors), kill, and
adopt a process that a child has forked. The zygote sends notices back: ready, adopted, ended. It kills processes
that a child leaves behind.

It ends when its host ends for any reason, and then kills all children and their descendants.
"""

from __future__ import annotations

import array
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Callable, List, NoReturn

from .kernel import (
    adopt_orphans,
    children,
    end_with_parent,
    exit_code,
    ignore_stopped_children,
    is_child,
    kill_trees,
    threads,
)
from .remove_tree import remove_tree

PACKET = struct.Struct("<cQ")
"""Layout of the head of a command or notice: its kind, and the host's key (a number) of the child that it is about."""
END = struct.Struct("<idQ")
"""Layout of the rest of an ``ENDED`` notice: exit code, processor time in seconds, peak memory in kilobytes."""
FORK, KILL = b"f", b"k"
"""Kinds of commands: fork a child, or kill one."""
EXPECT, ADOPT, GIVE_UP = b"w", b"a", b"g"
"""Kinds of commands about a copy that a child forks of itself: expect it, adopt it, or expect it no more.

Between the first and the others, the zygote does not kill children that it does not know."""
PID = struct.Struct("<i")
"""Layout of the rest of an ``ADOPT`` command: the copy's PID in the zygote's namespace."""
READY, ENDED, FAILED, ADOPTED = b"r", b"e", b"x", b"t"
"""Kinds of notices to the host; ``FAILED`` with key 0 means that the zygote itself could not start."""
_PACKET_BYTES = PACKET.size + PID.size
_LONGEST_ERROR = 1000
"""Limit of characters in the notice about a failed start."""
_MAX_DESCRIPTORS = 8
"""Limit of descriptors that a child can be given."""

Run = Callable[[List[int]], None]
"""Function that a child calls with its descriptors."""


class Zygote:
    """The main loop of the zygote: forks, kills and reaps children until the host process has ended."""

    def __init__(self, control: socket.socket, run: Run) -> None:
        self._control, self._run = control, run
        self._pid = os.getpid()
        self._workers: dict[int, int] = {}
        self._expected = 0
        """The number of expected copies that are not adopted yet; children of this process fork them of themselves."""
        self._is_untidy = False
        """Whether children may have ended, or unknown children may exist, since the last :meth:`_tidy`."""
        self._signals, self._wake = socket.socketpair()

    def work(self) -> None:
        """Execute the commands of the host process until it has ended or SIGTERM comes; then kill all children."""
        self._wake.setblocking(False)
        quietly: dict[str, Any] = {"warn_on_full_buffer": False} if sys.version_info >= (3, 7) else {}
        signal.set_wakeup_fd(self._wake.fileno(), **quietly)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        ignore_stopped_children()
        self._notify(READY, 0)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._signals, select.POLLIN)
        going = True
        while going:
            ready = {descriptor for descriptor, _ in poll.poll(0 if self._is_untidy else None)}
            if self._signals.fileno() in ready:
                going = signal.SIGTERM not in self._signals.recv(4096)
                self._is_untidy = True
            if self._control.fileno() in ready:
                going = self._obey() and going
            if self._is_untidy:
                going = self._tidy() and going
        signal.set_wakeup_fd(-1)
        self._end()

    def _obey(self) -> bool:
        """Execute the next command; return False if the host process has ended."""
        size = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i", [0]).itemsize)
        try:
            packet, ancillary, _, _ = self._control.recvmsg(_PACKET_BYTES, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:  # the host ended without reading all notices
            return False
        if not packet:
            return False
        what, key = PACKET.unpack_from(packet)
        if what == FORK:
            self._fork(key, [fd for _, _, data in ancillary for fd in array.array("i", data)])
        elif what == KILL:
            for pid in [pid for pid, known in self._workers.items() if known == key]:
                os.kill(pid, signal.SIGKILL)
        elif what == EXPECT:
            self._expected += 1
        else:
            self._expected -= 1
            if what == ADOPT:
                self._adopt(key, *PID.unpack_from(packet, PACKET.size))
            self._is_untidy = True
        return True

    def _adopt(self, key: int, pid: int) -> None:
        if pid not in self._workers and is_child(pid):
            self._workers[pid] = key
            self._notify(ADOPTED, key)
        else:
            self._notify(FAILED, key, b"was no child of the zygote")

    def _fork(self, key: int, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._notify(FAILED, key, str(error.strerror).encode())
        else:
            if pid == 0:
                self._be_a_worker(descriptors)
            self._workers[pid] = key
        for descriptor in descriptors:
            os.close(descriptor)

    def _be_a_worker(self, descriptors: list[int]) -> NoReturn:
        """Run a new child: release the zygote's resources, call the function of ``prepare``, and exit."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            for own in (self._control, self._signals, self._wake):
                own.close()
            end_with_parent(signal.SIGKILL, self._pid)
            adopt_orphans()
            gc.enable()
            self._run(descriptors)
            code = 0
        except BaseException:  # noqa: BLE001 - a child must never return into the zygote's loop
            traceback.print_exc()
        finally:
            os._exit(code)

    def _tidy(self) -> bool:
        """Kill the processes that ended children left behind, then report the ends; return False if the host ended.

        Children that the zygote does not know are such processes, unless it expects a copy of a worker. The host sends
        ``EXPECT`` before a copy exists. So children are listed first, and commands are read before any child is killed.
        """
        self._is_untidy = False
        ended = list(self._reaped())
        there = children(self._pid)
        is_host_there = True
        while is_host_there and select.select([self._control], [], [], 0)[0]:
            is_host_there = self._obey()
        if not self._expected:
            kill_trees(there - self._workers.keys())
        for key, end in ended:
            self._notify(ENDED, key, end)
        return is_host_there

    def _reaped(self) -> Iterator[tuple[int, bytes]]:
        """Reap all ended children; yield the host's key of each worker among them, and how it ended.

        How it ended is a packed ``END``: exit code, processor time and peak memory. Other children are not reported.
        """
        with suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                key = self._workers.pop(pid, None)
                if key is not None:
                    seconds = usage.ru_utime + usage.ru_stime
                    yield key, END.pack(exit_code(status), seconds, usage.ru_maxrss)

    def _end(self) -> None:
        """Kill all children, and repeat it for descendants that become children when their parents die."""
        while True:
            pids = children(self._pid) or set(self._workers)
            if not pids:
                break
            kill_trees(pids)
            for _ in pids:
                self._workers.pop(os.waitpid(-1, 0)[0], None)

    def _notify(self, what: bytes, key: int, more: bytes = b"") -> None:
        with suppress(OSError):  # the loop notices that the host has ended
            self._control.send(PACKET.pack(what, key) + more)


def _found(name: str) -> Any:
    """Import a module and return an attribute of it, given as ``"module:name"``."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def main() -> None:
    """Start the zygote: read its program from standard input, prepare it, and execute the host process's commands."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    source = sys.stdin.buffer
    start: dict[str, Any] = pickle.load(source)
    if start["host"]:
        end_with_parent(signal.SIGTERM, start["host"])
    if start["path"] is not None:
        sys.path[:] = start["path"]
    if start["environ"] is not None:
        os.environ.clear()
        os.environ.update(start["environ"])
    gc.disable()  # a collection would write to all objects, so that no memory could be shared with the children
    adopt_orphans()
    try:
        run = _found(start["prepare"])(pickle.load(source))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        control.send(PACKET.pack(FAILED, 0) + why.encode(errors="replace"))
        raise
    if threads() > 1:
        print(
            f"the zygote has {threads()} threads: a module it imported has started some, and a lock that "
            "they hold at a fork stays locked for ever in the worker; serve that ID from threads",
            file=sys.stderr,
        )
    gc.collect()
    if sys.version_info >= (3, 7):
        gc.freeze()
    Zygote(control, run).work()
    if start["folder"] is not None:
        remove_tree(start["folder"])
    os._exit(0)


if __name__ == "__main__":
    main()
