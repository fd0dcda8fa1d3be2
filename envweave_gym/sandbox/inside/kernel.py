"""Linux calls without a Python function, and helpers for children, signals and exit statuses of processes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from .syscall_numbers import number

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
_SIGACTION_BYTES, _FLAGS_OFFSET, _SA_NOCLDSTOP = 256, 136, 1
"""Size of a buffer larger than the C library's ``struct sigaction``, offset of ``sa_flags``, and a flag."""
_HIGHEST_OOM_SCORE = b"1000"


def end_with_parent(how: signal.Signals, parent: int) -> None:
    """Have the kernel send this process the signal ``how`` when the thread that started it ends.

    If the process ``parent`` has ended already, send the signal at once.
    """
    prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:  # it ended before the call of prctl, which then has no effect
        os.kill(os.getpid(), how)


def adopt_orphans(wanted: bool = True) -> None:
    """Become the subreaper of this process's descendants; with ``wanted=False`` stop being it.

    A subreaper becomes the parent of descendants whose own parent ends.
    """
    prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def ignore_stopped_children() -> None:
    """Let the kernel send SIGCHLD only when a child ends, and not when a child is stopped or continued."""
    action = ctypes.create_string_buffer(_SIGACTION_BYTES)
    _libc().sigaction(int(signal.SIGCHLD), None, action)
    ctypes.c_int.from_buffer(action, _FLAGS_OFFSET).value |= _SA_NOCLDSTOP
    _libc().sigaction(int(signal.SIGCHLD), action, None)


def prctl(option: int, value: int) -> None:
    """Call ``prctl(option, value)``; raise ``OSError`` if it fails."""
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) is not allowed here")


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call by name and return its result; raise ``OSError`` if it fails."""
    # syscall() is variadic: a plain int would be passed in 32 bits
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in (number(name), *arguments)]
    found: int = _libc().syscall(*given)
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return found


@lru_cache(maxsize=None)
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


def children(pid: int) -> set[int]:
    """Return the PIDs of a process's children; an empty set if it has ended or the kernel does not list them."""
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def kill_trees(pids: set[int]) -> None:
    """Kill children of this process together with all their descendants.

    All are stopped first, one generation after another: otherwise the rest could go on forking for ever, as each
    killed process lets another fork succeed. Stopped processes reap no children, so no PID is reused meanwhile.
    """
    stopped: set[int] = set()
    while pids:
        _send(pids, signal.SIGSTOP)
        stopped |= pids
        pids = set().union(*map(children, stopped)) - stopped
    _send(stopped, signal.SIGKILL)


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def is_child(pid: int) -> bool:
    """Return whether a PID belongs to a child of this process, running or zombie."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def threads() -> int:
    """Return the number of threads of this process."""
    return len(os.listdir("/proc/self/task"))


def confine(memory: int | None) -> None:
    """Limit this process's address space to ``memory`` bytes (``None``: no limit) and disable core files.

    It also becomes the first process that the kernel kills when the machine runs out of memory.
    """
    if memory is not None:
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    be_killed_first()


def be_killed_first() -> None:
    """Let the kernel kill this process before others when the machine runs out of memory."""
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(descriptor, _HIGHEST_OOM_SCORE)
    finally:
        os.close(descriptor)


def exit_code(status: int) -> int:
    """Return the exit code of a wait status, or minus the number of the signal that ended the process."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def describe_exit(code: int) -> str:
    """Return a phrase for a result of :func:`exit_code`, such as "was killed by SIGKILL"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
