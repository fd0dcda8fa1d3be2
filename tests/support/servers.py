"""Real servers for tests: ``with running_server("envweave/Counter-v0") as server: …``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
import requests

TESTS = Path(__file__).parent
TOKEN = "token-of-the-tests"
UNTIL_S = 120.0 if os.environ.get("ENVWEAVE_CLUSTER") else 10.0
"""On a real cluster Pods are gone 3 to 15 s after their deletion, later after an outage of its API server."""
PATIENCE = 30.0
"""So many seconds a server has to end once it is told to."""


@dataclass
class RunningServer:
    """A server in a process of its own."""

    url: str
    token: str | None
    process: subprocess.Popen[str]
    errors: IO[str]

    @property
    def headers(self) -> dict[str, str]:
        """What a client sends along."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def ask(self, method: str, path: str, **options: Any) -> requests.Response:
        """A request with the token; ``options`` are those of ``requests.request``."""
        headers = {**self.headers, **options.pop("headers", {})}
        return requests.request(method, self.url + path, headers=headers, timeout=30, **options)

    def get(self, path: str, **options: Any) -> Any:
        """The JSON that a path gives."""
        return self.ask("GET", path, **options).json()

    def gauge(self, name: str) -> float:
        """One number of ``/metrics``."""
        lines = self.ask("GET", "/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """The JSON that comes of sending JSON."""
        return self.ask("POST", path, json={} if body is None else body, **options).json()

    def log(self) -> str:
        """What it has written to stderr."""
        self.errors.seek(0)
        return self.errors.read()


@contextlib.contextmanager
def running_server(
    *what: str,
    token: str | None = TOKEN,
    env: dict[str, str] | None = None,
    under: tuple[str, ...] = (),
    **options: Any,
) -> Iterator[RunningServer]:
    """``python -m envweave_gym_server`` on a free port, ended with the block.

    ``what`` are IDs, also ``module:ID`` with the modules of the tests. ``options`` are those of the command
    line: ``max_sessions=5``, ``isolation="process"``. ``token=None`` lets everybody in, and ``under`` are the
    words of a command that runs the command in the rest of its words.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = _start(under, what, token, env or {}, options, errors)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://[^\s/]+", line)
            if found is None:
                process.wait(PATIENCE)
                errors.seek(0)
                raise AssertionError(f"no server: {line!r} {errors.read()!r}")
            yield RunningServer(found[0], token, process, errors)
        finally:
            _end(process)


@contextlib.contextmanager
def first_line_of(
    command: list[Any], environ: dict[str, str], open_files: Sequence[int] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that a command starts, and the line that it prints; ended with the block."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, pass_fds=open_files, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def _start(
    under: tuple[str, ...],
    what: tuple[str, ...],
    token: str | None,
    env: dict[str, str],
    options: dict[str, Any],
    errors: IO[str],
) -> subprocess.Popen[str]:
    options = {"port": 0, "allow_anonymous": token is None, **options}
    words: list[str] = []
    for name, value in options.items():
        if value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    environ |= {**({"ENVWEAVE_TOKEN": token} if token else {}), **env}
    command = [*under, sys.executable, "-m", "envweave_gym_server", *words, *what]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)


def _end(process: subprocess.Popen[str]) -> None:
    """End the server as an operator does; one that stays is a failure of the test."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def serving_at(path: Path) -> contextlib.AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """A server of Counter on the Unix socket ``path``, and the first line that it prints."""
    command = [sys.executable, "-m", "envweave_gym_server", f"--uds={path}", "envweave/Counter-v0"]
    return first_line_of(command, {"ENVWEAVE_TOKEN": TOKEN})


def until(what: Callable[[], Any], seconds: float = UNTIL_S) -> None:
    """Wait until a condition holds; fail after a number of seconds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def runs(process: psutil.Process) -> bool:
    """Whether a process is there, and not only its remains."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def is_there(url: str) -> bool:
    """Whether a server answers at this URL."""
    try:
        return requests.get(url, timeout=10).status_code == 200
    except requests.ConnectionError:
        return False
