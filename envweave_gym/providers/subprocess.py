"""A private server in a process of its own, on loopback, for this process and those it forks.

The listening socket belongs to this process: the port is known before the server runs, clients that come too
early wait in its queue, and a server that died is started again behind the same address. The server holds the
other end of a pipe and ends when that closes, whichever way its owner ends.
"""

from __future__ import annotations

import json
import os
import secrets
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

from envweave_gym.faults import PACKAGE, MissingExtra, NotAvailable
from envweave_gym.providers.replica import last_words, stop_at_exit, wait_until_healthy
from envweave_gym.providers.shared import numbers_in, shared_urls
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

_BACKLOG = 2048
_PATIENCE = 2.0
_START = 60.0
_FLUSH = 0.5
_LONGEST_LOG = 1 << 18
_STDERR = 2
_lock = threading.Lock()
_server: PrivateServer | None = None
_servers: WeakSet[PrivateServer] = WeakSet()


class PrivateServer:
    """One server process, started when it is needed, and again when it has died."""

    def __init__(self, *, token: str | None = None, ids: Sequence[str] = ()) -> None:
        """``token`` is what it asks for, by default one that is made up; ``ids`` what it serves: all."""
        for module in ("flask", "gunicorn", "wsproto"):
            if find_spec(module) is None:
                raise MissingExtra(
                    f"backend='subprocess' needs {module}, which is not installed: "
                    f"pip install '{PACKAGE}[server]'"
                )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._token, self._ids = token or secrets.token_urlsafe(32), list(ids)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: _Log | None = None
        # the same thread may come again: collecting garbage closes environments, which may be the last ones
        self._owner, self._lock = os.getpid(), threading.RLock()
        self.starts, self._is_over = 0, False
        remember_token(self.url, self._token)
        self.upkeep = Upkeep(self.ensure)
        keep_up(self.url, self.upkeep)
        _servers.add(self)
        stop_at_exit(self)

    def ensure(self) -> None:
        """Start the server unless it runs; a process that was forked from the owner leaves that to it."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if not self._is_over and (self._process is None or self._process.poll() is not None):
                self._start()

    def _start(self) -> None:
        if self._process is not None:
            _close_pipe(self._process)
            if (self._process.returncode or 0) > 0:
                code, self._process = self._process.returncode, None
                raise NotAvailable(
                    f"the server of backend='subprocess' ended with exit code {code}; its error is on stderr"
                )
        command = [sys.executable, "-m", "envweave_gym_server.private", str(self._listener.fileno())]
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stderr=write,
                pass_fds=[self._listener.fileno()],
                start_new_session=True,
            )
        finally:
            os.close(write)
            self._log = _Log(read)
        self.starts += 1
        pipe = self._process.stdin
        if pipe is None:
            raise NotAvailable(f"the server of backend='subprocess' got no pipe: {command}")
        told = {"token": self._token, "paths": sys.path, "ids": self._ids}
        pipe.write(json.dumps(told).encode() + b"\n")
        pipe.flush()

    def wait(self) -> PrivateServer:
        """Start it, and wait until it serves."""
        try:
            self.ensure()
            wait_until_healthy(self.url, _START, self._ended, "the server of backend='subprocess'", self.logs)
        except BaseException:
            self.stop()
            raise
        return self

    def _ended(self) -> str | None:
        """Why the server runs no more; ``None`` while it does."""
        process = self._process
        if process is not None and process.poll() is None:
            return None
        code = "it was stopped meanwhile" if process is None else f"exit code {process.returncode}"
        return f"{code}, and it last said: {last_words(self.logs())}"

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def logs(self) -> str:
        """What the server has written to stderr, which goes on to that of this process."""
        return "" if self._log is None else self._log.text()

    def rest(self) -> None:
        """Let the server end, and wait until it has; the next connection starts another."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                _end(process)
            if self._log is not None:
                self._log.wait(_FLUSH)

    def stop(self) -> None:
        """Let the server end for good, and wait until it has."""
        if os.getpid() != self._owner:
            return
        self._is_over = True
        keep_up(self.url, None)
        self.rest()
        self._listener.close()
        stop_at_exit(self, False)

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


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server with all its processes; one that stands still does not hear that it should."""
    _close_pipe(process)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Log:
    """Hands on what a server writes, and keeps the end of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._kept = descriptor, bytearray()
        self._thread = threading.Thread(target=self._read, name="log of a server", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._descriptor, 1 << 16):
            with suppress(OSError):  # this process has closed its stderr
                os.write(_STDERR, chunk)
            self._kept += chunk
            del self._kept[:-_LONGEST_LOG]
        os.close(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until the server has closed it."""
        self._thread.join(seconds)

    def text(self) -> str:
        """What is kept."""
        return bytes(self._kept).decode(errors="replace")


# What asks for it


class OwnUrl(str):
    """The URL of the private server of this process, which is in pickles that of whoever reads them.

    So environments go to other processes without the token, and are served there after this one has ended.
    """

    def __reduce__(self) -> Any:
        return own_url, ()


def own_url() -> OwnUrl:
    """Where the private server of this process is."""
    return OwnUrl(private_server().url)


def private_server() -> PrivateServer:
    """The private server of this process, or of the one it was forked from."""
    global _server
    with _lock:
        if _server is None:
            _server = PrivateServer()
    return _server


def subprocess_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URL of the private server; or of so many as ``replicas`` says, which is taken out of ``kwargs``."""
    if "replicas" not in kwargs and "warm" not in kwargs:
        return [own_url()]
    count, warm = numbers_in(name, kwargs)
    return _urls(subprocess_start(name, image, kwargs), count, warm)


def subprocess_start(name: str, image: str | None, kwargs: dict[str, Any]) -> partial[PrivateServer]:
    """What starts a private server, which has no options."""
    return partial(_started)


def _started(token: str | None = None, ids: Sequence[str] = ()) -> PrivateServer:
    return PrivateServer(token=token, ids=ids).wait()


def _urls(start: partial[PrivateServer], count: int, warm: int | None = None) -> list[str]:
    return shared_urls(("subprocess", repr(start)), count, start, partial(_again, start), warm)


def _again(start: partial[PrivateServer]) -> str:
    return _urls(start, 1)[0]


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_forget_all)
