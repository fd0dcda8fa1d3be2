"""Kills a daemonic worker of :mod:`multiprocessing` when its parent dies, even while the worker is busy.

Such a worker notices a dead parent only when it reads its next command. Until then it would go on with its
program or evaluation, and hold slots that others wait for.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading

from envweave_gym.os_support.process_local import ProcessLocal

_parents = ProcessLocal(list[int])
"""Descriptor that becomes readable when the parent ends; empty until this process watches it."""


def end_with_parent() -> None:
    """From now on kill this process when its parent ends, if it is a daemonic child of :mod:`multiprocessing`.

    Other processes are left alone: they may have been started to outlive their parents.
    """
    processes = sys.modules.get("multiprocessing.process")  # a child of it has imported it
    parent = processes and processes.parent_process()
    if processes is None or parent is None or parent.pid is None or not processes.current_process().daemon:
        return
    watched = _parents.value
    if not watched:
        try:
            watched.append(_descriptor(parent.pid, parent.sentinel))
        except ProcessLookupError:
            _end()
            return
        threading.Thread(target=_wait_for, args=[watched[0], None], name="parent", daemon=True).start()
    _wait_for(watched[0], 0)


def _descriptor(pid: int, sentinel: int) -> int:
    """Return a pidfd of the parent, or multiprocessing's pipe to it where there are no pidfds (gVisor, macOS).

    Workers forked later inherit the other end of that pipe. So they end one by one, the last one first.
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
