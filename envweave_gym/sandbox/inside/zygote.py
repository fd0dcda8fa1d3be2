"""The zygote: a process with one thread that has imported everything and is forked for each worker.

Its host starts it with the number of a descriptor (see ``forkserver.py``). On standard input it reads the
import path, a function ``prepare`` and its argument. It calls that once; the result is called in every child
with its descriptors.

Then orders come as packets over the descriptor: fork (with the descriptors of the child), kill, adopt what a
child has forked. Notices go back: ready, adopted, ended. Processes that a child leaves behind are killed.

It ends when its host ends in any way, and kills all children and their descendants.
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
from .trees import remove_tree

PACKET = struct.Struct("<cQ")
"""The head of an order or notice: its kind, and the key of the child."""
END = struct.Struct("<idQ")
"""How a child ended: exit code, seconds of processor time, peak memory in kilobytes."""
FORK, KILL = b"f", b"k"
EXPECT, ADOPT, GIVE_UP = b"w", b"a", b"g"
"""A child forks itself: unknown children are left alone until the copy is adopted or given up."""
PID = struct.Struct("<i")
"""Follows :data:`ADOPT`: the PID, as the zygote sees it."""
READY, ENDED, FAILED, ADOPTED = b"r", b"e", b"x", b"t"
_PACKET = PACKET.size + PID.size
_LONGEST_ERROR = 1000
"""Characters of a start-up error."""
_MAX_DESCRIPTORS = 8
"""Descriptors of a child."""

Run = Callable[[List[int]], None]
"""The function that a child runs with its descriptors."""


class Zygote:
    """Forks, kills and reaps until the host is gone."""

    def __init__(self, control: socket.socket, run: Run) -> None:
        self._control, self._run = control, run
        self._pid = os.getpid()
        self._workers: dict[int, int] = {}
        self._expected = 0
        """How many copies are announced that this process does not fork itself."""
        self._is_untidy = False
        """Whether children have ended or unknown ones may exist."""
        self._signals, self._wake = socket.socketpair()

    def work(self) -> None:
        """Follow the orders of the host."""
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
        """Execute the next order; return False if the host is gone."""
        size = socket.CMSG_LEN(_MAX_DESCRIPTORS * array.array("i", [0]).itemsize)
        try:
            packet, ancillary, _, _ = self._control.recvmsg(_PACKET, size, socket.MSG_CMSG_CLOEXEC)
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
        """In the child: release what belongs to the zygote, run, and exit."""
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
        except BaseException:  # noqa: BLE001 - nothing may run on into the loop of the zygote
            traceback.print_exc()
        finally:
            os._exit(code)

    def _tidy(self) -> bool:
        """Kill what ended children left behind, then report their ends; return False if the host is gone.

        A copy is announced before it exists. So the children are listed first, then announcements are read,
        and only then are unknown children killed.
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
        """Reap ended children; yield key and status of each."""
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
        """Kill all children, and those that become children by that."""
        while True:
            pids = children(self._pid) or set(self._workers)
            if not pids:
                break
            kill_trees(pids)
            for _ in pids:
                self._workers.pop(os.waitpid(-1, 0)[0], None)

    def _notify(self, what: bytes, key: int, more: bytes = b"") -> None:
        with suppress(OSError):  # a host that has gone is noticed as such
            self._control.send(PACKET.pack(what, key) + more)


def _found(name: str) -> Any:
    """Resolve ``"module:name"``."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def main() -> None:
    """Start up, and follow orders."""
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
    gc.disable()  # a collection in a child would write to all objects, and so copy the pages shared with this
    adopt_orphans()
    try:
        run = _found(start["prepare"])(pickle.load(source))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        control.send(PACKET.pack(FAILED, 0) + why.encode(errors="replace"))
        raise
    if threads() > 1:
        print(
            f"the zygote has {threads()} threads: a module it imported has started some, and what those "
            "held at a fork (a lock, say) is held for ever in the worker; serve that ID from threads",
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
