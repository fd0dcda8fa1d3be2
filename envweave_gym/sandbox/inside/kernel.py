"""What is asked of Linux, so that no process outlives its server or takes the machine with it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from .syscalls import number

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
_SIGACTION, _FLAGS, _SA_NOCLDSTOP = 256, 136, 1
"""More bytes than a ``struct sigaction`` of the C library has, and where in it its flags are."""
_FIRST = b"1000"
"""The score of those that go first when memory runs out."""


def end_with_parent(how: signal.Signals, parent: int) -> None:
    """Get the signal ``how`` when the thread that started this process ends; at once if ``parent`` has."""
    prctl(PR_SET_PDEATHSIG, how)
    if os.getppid() != parent:
        os.kill(os.getpid(), how)


def adopt_orphans(wanted: bool = True) -> None:
    """Become the parent of what the children of this process leave behind, or be it no more."""
    prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def hear_of_ends_alone() -> None:
    """Get SIGCHLD when a child has ended, and not whenever one is stopped or goes on."""
    action = ctypes.create_string_buffer(_SIGACTION)
    _libc().sigaction(int(signal.SIGCHLD), None, action)
    ctypes.c_int.from_buffer(action, _FLAGS).value |= _SA_NOCLDSTOP
    _libc().sigaction(int(signal.SIGCHLD), action, None)


def prctl(option: int, value: int) -> None:
    """Ask the kernel to do something with this process."""
    if _libc().prctl(option, value, 0, 0, 0) != 0:
        raise OSError(f"prctl({option}, {value}) is not allowed here")


def syscall(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call that Python has no function for; ``OSError`` where it fails."""
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
    """The children of a process; none where it has gone, or the kernel does not list them."""
    found: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # a thread may end meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.update(map(int, (thread / "children").read_text().split()))
    return found


def kill_families(pids: set[int]) -> None:
    """Kill children of this process, with all that they have started.

    All are stopped first, one generation after another: whoever is killed makes room for the forks of others,
    who could go on for ever. Those that are stopped reap nobody, so that numbers keep their meaning.
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
    """Whether this is a child of this process, or what is left of one."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def threads() -> int:
    """How many threads this process has."""
    return len(os.listdir("/proc/self/task"))


def confine(memory: int | None) -> None:
    """Take at most so many bytes of memory, go first when the machine runs out of it, leave no core file."""
    if memory is not None:
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    try:
        os.write(descriptor, _FIRST)
    finally:
        os.close(descriptor)


def exit_code(status: int) -> int:
    """The exit code of a process by its wait status, or minus the signal that killed it."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def ending(code: int) -> str:
    """How a process ended, in words; ``code`` is its exit code, or minus the signal that killed it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
