"""A private server in a process of its own, on loopback, for this process and those it forks.

The listening socket belongs to this process: the port is known before the server runs, clients that come too
early wait in its queue, and a server that died is started again behind the same address. The server holds the
other end of a pipe and ends when that closes, whichever way its owner ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

from envweave_gym.core.faults import PACKAGE, MissingExtra, NotAvailable
from envweave_gym.providers.base import Provider
from envweave_gym.providers.pipe_log import PipeLog
from envweave_gym.providers.pool import ReplicaUrl
from envweave_gym.providers.replica import AT_REST, Replica, with_code

_BACKLOG = 2048
_PATIENCE = 60.0
_GRACE = 2.0
_FLUSH = 0.5
_lock = threading.Lock()
_server: PrivateServer | None = None
_servers: WeakSet[PrivateServer] = WeakSet()


class PrivateServer(Replica):
    """One server process, started when it is needed."""

    def __init__(self, *, token: str | None = None, ids: Sequence[str] = ()) -> None:
        """``token`` is what it asks for, by default one that is made up; ``ids`` what it serves: all."""
        for module in ("flask", "gunicorn"):
            if find_spec(module) is None:
                raise MissingExtra(
                    f"backend='subprocess' needs {module}, which is not installed: "
                    f"pip install '{PACKAGE}[server]'"
                )
        super().__init__("the server of backend='subprocess'", token)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ids = list(ids)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: PipeLog | None = None
        self._code = 0
        _servers.add(self)
        self._begin(now=False)

    def wait(self) -> PrivateServer:
        """Start it, and wait until it serves."""
        try:
            self.ensure()
            self._wait_until_healthy(self.url, _PATIENCE)
        except BaseException:
            self.stop()
            raise
        return self

    def _make(self) -> None:
        if (code := self._code) > 0:
            self._code = 0
            raise NotAvailable(f"{self.what} ended with exit code {code}; its error is on stderr")
        command = [sys.executable, "-m", "envweave_gym_server.program.private", str(self._listener.fileno())]
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=write,
                pass_fds=[self._listener.fileno()],
                start_new_session=True,
            )
        except OSError as error:  # no memory, no process, no interpreter
            raise NotAvailable(f"{self.what} cannot be started: {error}") from None
        finally:
            os.close(write)
            self._log = PipeLog(read)
        pipe = self._process.stdin
        if pipe is None:
            raise NotAvailable(f"{self.what} got no pipe: {command}")
        start = {"token": self.token, "paths": sys.path, "ids": self._ids}
        pipe.write(json.dumps(start).encode() + b"\n")
        pipe.flush()

    def _ended(self) -> str | None:
        if (process := self._process) is None:
            return AT_REST
        if process.poll() is None:
            return None
        _close_pipe(process)  # its processes that are left hold its log open
        if self._log is not None:
            self._log.wait(_FLUSH)
        return with_code(process.returncode, self.logs())

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def answers(self, timeout: float) -> bool:
        """Not where it has ended: its socket would let those wait who call."""
        return self.pid is not None and super().answers(timeout)

    def logs(self) -> str:
        """What the server has written to stderr, which goes on to that of this process."""
        return "" if self._log is None else self._log.text()

    def _remove(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end_process(process)
            self._code = process.returncode
        if self._log is not None:
            self._log.wait(_FLUSH)

    def _end(self) -> None:
        self._remove()
        self._code = 0

    def _close(self) -> None:
        self._listener.close()

    def forget(self) -> None:
        """In a process forked from the owner: let go of what keeps the server alive."""
        if self._process is not None:
            _close_pipe(self._process)
        self._process = None
        self._listener.close()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    """Tell a server to end."""
    if process.stdin is not None:
        process.stdin.close()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a server with all its processes; one that stands still does not hear that it should."""
    _close_pipe(process)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# What asks for it


def own_url() -> ReplicaUrl:
    """Where the private server of this process is; in pickles that of whoever reads them.

    So environments go to other processes without the token, and are served there after this one has ended.
    """
    return ReplicaUrl.of(private_server().url, own_url)


def private_server() -> PrivateServer:
    """The private server of this process, or of the one it was forked from."""
    global _server
    with _lock:
        if _server is None:
            _server = PrivateServer()
    return _server


class SubprocessProvider(Provider):
    """Starts private servers, which have no options."""

    name = "subprocess"
    shares_modules = same_packages = True

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[PrivateServer]:
        """A function that starts a private server."""
        return partial(_started)

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """The URL of the private server of this process, or of ``replicas`` others."""
        return super().urls(name, image, options) if {"replicas", "warm"} & options.keys() else [own_url()]


def _started(token: str | None = None, ids: Sequence[str] = ()) -> PrivateServer:
    return PrivateServer(token=token, ids=ids).wait()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
