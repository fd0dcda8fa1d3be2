"""Supervisor that runs a program as its child, and ends it with all its descendants when the owner ends.

It is run by path without site packages, so it imports the standard library alone. Its arguments are the
descriptor of a pipe, and the command of the program. The owner holds the other end of the pipe. When the owner
writes to it, or ends in any way, the program gets SIGTERM after a pause, and then SIGKILL. Descendants that left
the program's process group, as browsers do, become children of this process and are killed too.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress

GRACE_S = 0.5
"""Seconds that a program has to end after its stdin was closed, and again after SIGTERM."""
CANNOT_START = 127
"""The exit code if the command cannot be run, the same as a shell's."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def describe_exit(code: int) -> str:
    """Return a phrase for the exit code of a keeper, such as ``has ended (exit code -9, SIGKILL)``."""
    if code == CANNOT_START:
        return "cannot be started"
    try:
        by = "" if code >= 0 else f", {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        by = ", a signal"
    return f"has ended (exit code {code}{by})"


def main() -> None:
    """Run the program until it or the owner ends, and exit with its exit code."""
    owner, command = int(sys.argv[1]), sys.argv[2:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(owner, False)
    keeper = os.getpid()
    program = os.fork()
    if program == 0:
        _become_program(command, keeper)
    _release_pipes()
    # After the fork, which copies no threads. PR_SET_PDEATHSIG refers to the thread that forked: this main one.
    threading.Thread(target=_end_with_owner, args=(owner, program), daemon=True).start()
    code = None
    while code is None:
        child, status = os.waitpid(-1, 0)  # any child: orphans that were adopted would stay zombies
        if child == program:
            code = os.waitstatus_to_exitcode(status)
    _end_descendants(program)
    _exit_like(code)


def _become_program(command: list[str], keeper: int) -> None:
    """Replace this child process by the program's command, in a process group of its own; it dies with the keeper."""
    try:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # the keeper ended before the call above
            os._exit(CANNOT_START)
        for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored_by_python, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}".encode())
    finally:
        os._exit(CANNOT_START)


def _release_pipes() -> None:
    """Close the standard streams, so that the owner sees their end when the program ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


def _end_with_owner(owner: int, program: int) -> None:
    """Wait in a thread until the owner writes to the pipe or closes it, and then end the program."""
    os.read(owner, 1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        time.sleep(GRACE_S)
        _signal_group(program, number)


def _end_descendants(program: int) -> None:
    _signal_group(program, signal.SIGKILL)
    deadline = time.monotonic() + GRACE_S
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            for child in _children():
                os.kill(child, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.005)


def _children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except FileNotFoundError:  # a kernel that does not list them
        return []


def _signal_group(program: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program, number)


def _prctl(option: int, value: int) -> None:
    """Call ``prctl`` on Linux; do nothing elsewhere, where only the process group can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _exit_like(code: int) -> None:
    """Exit like the program did: with its exit code, or by the signal that killed it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
