"""Runs scripts in forked children of a process that has imported a suite: ``python run_scripts.py MODULE…``.

Each line of stdin is a JSON object with a ``script``, its limits ``deadline_s`` and ``memory_mb``, a ``module`` to
import before the fork, and whether to run the script in a ``fresh`` interpreter; a process with threads does not fork.
Each is answered by one line on the descriptor that stdout was at the start. Standard library alone, and Python 3.8: it
runs in the suite's own Python.

A child has a process group of its own. When it has ended, or exceeds a limit, all descendants of this process are
killed; those whose parents have died come back to this process, which is a subreaper. When the owner of stdin is
gone, this process kills them and ends. The limits hold for the child and all that it has started together.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn, TextIO

PR_SET_CHILD_SUBREAPER = 36
LONGEST_TEXT_BYTES = 200_000
POLL_S = 0.005
MEASURE_S = 0.25
"""Interval of measurements of processor time and memory."""
WALL_FACTOR = 5
"""Wall time that a script may take, as a multiple of its processor time: other programs may keep the machine busy."""


def main(modules: list[str]) -> None:
    """Import the modules, report which of them fail, and answer lines until stdin ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the suite prints must not be taken for replies
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    owner = os.getppid()
    failed = {name: error for name in modules for error in [imported(name)] if error}
    reply(replies, failed)
    for line in iter(requests.readline, ""):
        request = json.loads(line)
        folder = tempfile.mkdtemp(prefix="envweave-atlas-")
        try:
            reply(replies, run(request, folder, owner))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def reply(replies: TextIO, value: Any) -> None:
    """Write one line."""
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def imported(name: str) -> str:
    """Import a module; return the exception as text, or an empty one."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def run(request: dict[str, Any], folder: str, owner: int) -> dict[str, Any]:
    """Run a script in a child; return its exit status (``None`` if it was killed, negative for a signal) and output."""
    if request["module"]:
        imported(request["module"])
    fresh = request["fresh"] or len(os.listdir("/proc/self/task")) > 1
    begun = processor_seconds()
    paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
    child = os.fork()
    if child == 0:
        execute(request["script"], folder, paths, fresh)
    status, exceeded = wait(child, request["deadline_s"], request["memory_mb"], owner)
    end_descendants(child)
    seconds = processor_seconds() - begun
    texts = [tail(path) for path in paths]
    outputs = {"stdout": texts[0], "stderr": texts[1]}
    return {"status": status, "exceeded": exceeded, "seconds": round(seconds, 3), **outputs}


def execute(script: str, folder: str, paths: list[str], fresh: bool) -> NoReturn:
    """Run a script as the main program of this child process, with its output in files, and end the process.

    With ``fresh`` the process becomes another interpreter that runs it.
    """
    status = 1
    try:
        os.setsid()
        for number, path in enumerate(paths, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        scratch = os.path.join(folder, "tmp")
        os.mkdir(scratch)
        os.chdir(scratch)
        tempfile.tempdir = os.environ["TMPDIR"] = scratch
        if fresh:
            path = os.path.join(folder, "script.py")
            with open(path, "w") as file:
                file.write(script)
            os.execv(sys.executable, [sys.executable, path])
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - it ends the process
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # closed by the suite
                stream.flush()
        os._exit(status & 0xFF)


def wait(child: int, deadline_s: float, memory_mb: float, owner: int) -> tuple[int | None, str]:
    """Return the exit status of a child, negative for a signal, and an empty text.

    A child that exceeds a limit is killed: then ``None`` and the limit, ``deadline`` or ``memory``.
    """
    begun = measured = time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), ""
        if os.getppid() != owner:
            end_descendants(child)
            sys.exit(1)
        now = time.monotonic()
        exceeded = "deadline" if now - begun > WALL_FACTOR * deadline_s else ""
        if now - measured > MEASURE_S:
            measured = now
            seconds, used_mb = used_by_descendants()
            if now - begun > deadline_s and seconds > deadline_s:
                exceeded = "deadline"
            elif used_mb > memory_mb:
                exceeded = "memory"
        if exceeded:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, exceeded
        time.sleep(POLL_S if now - begun < 1 else 10 * POLL_S)


def used_by_descendants() -> tuple[float, float]:
    """Return the processor seconds of this process's descendants that run, and the megabytes that they hold.

    Processor time includes that of their children that have ended. Memory is what is not backed by files; what a
    process shares with the one it was forked from counts in both.
    """
    ticks = pages = 0
    waiting = children_of(os.getpid())
    while waiting:
        pid = waiting.pop()
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{pid}/statm") as file:
                resident, shared = map(int, file.read().split()[1:3])
        except (OSError, ValueError):
            continue  # it has ended
        ticks += sum(map(int, fields[11:15]))
        pages += resident - shared
        waiting += children_of(pid)
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def children_of(pid: int) -> list[int]:
    """Return the PIDs of the children of all threads of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    return found


def processor_seconds() -> float:
    """Return the processor time of all children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def end_descendants(group: int) -> None:
    """Kill the child's process group, and all descendants that have come back to this process."""
    with suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    while True:
        children = children_of(os.getpid())
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                continue
        if not children:
            return


def tail(path: str) -> str:
    """Return the end of a file as text."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - LONGEST_TEXT_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
