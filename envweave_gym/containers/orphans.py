"""Ends a worker process of a vector whose owner was killed, also while it is busy.

Such a worker learns that its owner is gone when it reads its next command from a pipe. One that runs a
program or an evaluation, or waits for a slot or for a server, would go on until then, and hold what others
wait for.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

_watched: tuple[int, int] | None = None
"""The process that watches its parent, as a forked one has to begin anew, and a descriptor that can be read
when the parent has ended."""


def end_with_parent() -> None:
    """Kill this process when its parent ends, or now if it has, if it is a worker of a vector.

    That is a daemonic child of :mod:`multiprocessing`. Those are meant to end with their parents; others may
    have been started to outlive them.
    """
    global _watched
    processes = sys.modules.get("multiprocessing.process")  # a child of it has imported it
    parent = processes and processes.parent_process()
    if processes is None or parent is None or parent.pid is None or not processes.current_process().daemon:
        return
    if _watched is None or _watched[0] != os.getpid():
        try:
            _watched = os.getpid(), _descriptor(parent.pid, parent.sentinel)
        except ProcessLookupError:
            _end()
            return
        threading.Thread(target=_wait_for, args=[_watched[1], None], name="parent", daemon=True).start()
    _wait_for(_watched[1], 0)


def _descriptor(pid: int, sentinel: int) -> int:
    """A pidfd, or where there are none (gVisor, macOS) the pipe that multiprocessing has for this.

    Workers that were forked later hold its other end too: they end one after the other, the last one first.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError):
        return sentinel


def _wait_for(parent: int, milliseconds: int | None) -> None:
    waiting = select.poll()
    waiting.register(parent, select.POLLIN)
    if waiting.poll(milliseconds):
        _end()


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
