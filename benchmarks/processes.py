"""Processes that benchmarks measure: a server of ours, and peers in a venv of their own, which ``make peer`` makes.

This module needs no more packages than the server itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
PEER_PYTHON = Path(".venv-peer/bin/python")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@contextlib.contextmanager
def running(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process for the length of the benchmark."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def our_server(*options: str) -> Iterator[tuple[str, int]]:
    """The URL of a server of ours that lets everybody in, and its process."""
    command = [sys.executable, "-m", "envweave_gym_server", "--port", "0", "--allow-anonymous", *options]
    environ = {name: text for name, text in os.environ.items() if name != "ENVWEAVE_TOKEN"}
    with running(*command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        line = process.stdout.readline() if process.stdout else ""
        url = re.search(r"http://[^\s/]+", line)
        if url is None:
            raise RuntimeError(f"the server did not start: {line!r}")
        yield url[0], process.pid
        process.terminate()
        process.wait(30)


def wait_for(port: int, seconds: float = 60.0) -> None:
    """Wait until somebody listens at a port."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Peer:
    """A process with openenv's own clients, in its own venv, that measures on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, what: str) -> float:
        """Send a line and return the number in the reply."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            raise RuntimeError(f"the peer ended while it measured {what!r}")
        return float(reply)


def children_of(pid: int) -> list[int]:
    """The processes below a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children_of(int(child))]
    return found


def cpu_s(pid: int) -> float:
    """The CPU seconds that a process and those below it have taken so far."""
    ticks = 0
    for process in (pid, *children_of(pid)):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime
    return ticks / os.sysconf("SC_CLK_TCK")
