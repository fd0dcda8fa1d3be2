"""Provider ``subprocess``: a private server in a child process, reached over a framed Unix socket.

The owner process opens the listening socket at an address that never changes, and leaves it to the server. So
early connections wait in the backlog, and the kernel ends them if the server dies. The server holds the other end
of a pipe and ends when that closes, however its owner ends.

The server is a supervisor with a forked worker. The supervisor forks another worker when one dies
(``envweave_gym_server/program/private.py``); the owner only starts another supervisor (``providers/replica.py``).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from envweave_gym.core.faults import NotAvailable
from envweave_gym.net.framed_socket import listen
from envweave_gym.os_support.owned_folders import owned_folder
from envweave_gym.os_support.pipe_log import PipeLog
from envweave_gym.os_support.process_identity import began, is_gone
from envweave_gym.os_support.process_local import ProcessLocal, in_forked_child
from envweave_gym.providers.base import Provider
from envweave_gym.providers.pool import ReplicaUrl
from envweave_gym.providers.replica import AT_REST, Replica, with_code

_STARTUP_S = 60.0
_GRACE_S = 2.0
"""Time for a server to end after its pipe was closed; then it is killed."""
_FLUSH_S = 0.5
"""Time to wait for the rest of the log after a server has ended."""


class PrivateServer(Replica):
    """Replica in a child process, started when a client first connects or :meth:`wait` is called."""

    def __init__(self, *, token: str | None = None, ids: Sequence[str] = ()) -> None:
        """Open the listening socket.

        ``token`` is the clients' access token, by default a random one. The server offers the environments
        ``ids``, by default all that can be made.
        """
        super().__init__("the server of backend='subprocess'", token)
        self._address = _new_address()
        self.url = f"unix://{quote(self._address, safe='')}"
        self._ids = list(ids)
        self._process: subprocess.Popen[bytes] | None = None
        self._log: PipeLog | None = None
        self._code = 0
        self._owner_process = f"{os.getpid()}-{began(os.getpid())}"
        in_forked_child(self, PrivateServer._forget)
        self._begin(now=False)

    def wait(self) -> PrivateServer:
        """Start the server if it does not run, wait until it is healthy, and return this object."""
        try:
            self.ensure()
            self._wait_until_healthy(self.url, _STARTUP_S)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def is_orphan(self) -> bool:
        """Whether its owner has ended, and the server with it; a process forked from the owner may live on."""
        return is_gone(self._owner_process)

    def _make(self) -> None:
        if (code := self._code) > 0:
            self._code = 0
            raise NotAvailable(f"{self.what} ended with exit code {code}; its error is on stderr")
        # The server's children inherit the writing end: the log ends only when the last of them has ended.
        read, write = os.pipe()
        try:
            with _listen(self._address) as listener:
                number = listener.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "envweave_gym_server.program.private", str(number)],
                    stdin=subprocess.PIPE,
                    stderr=write,
                    pass_fds=[number],
                    start_new_session=True,
                )
        except OSError as error:  # no memory, no process, no interpreter
            raise NotAvailable(f"{self.what} cannot be started: {error}") from None
        finally:
            os.close(write)
            self._log = PipeLog(read)
        pipe: Any = self._process.stdin
        # Over the pipe, as arguments and environment variables can be read in /proc by others.
        start = {"token": self.token, "paths": sys.path, "ids": self._ids}
        with suppress(BrokenPipeError):  # it has ended already; the next call finds out with which code
            pipe.write(json.dumps(start).encode() + b"\n")
            pipe.flush()

    def _ended(self) -> str | None:
        if (process := self._process) is None:
            return AT_REST
        if process.poll() is None:
            return None
        _close_pipe(process)  # its processes that are left hold its log open
        if self._log is not None:
            self._log.wait(_FLUSH_S)
        return with_code(process.returncode, self.logs())

    @property
    def pid(self) -> int | None:
        """Process ID of the server; ``None`` if it does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def logs(self) -> str:
        """Return the end of the server's stderr, which is also copied to the stderr of this process."""
        return "" if self._log is None else self._log.text()

    def _remove(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _end_process(process)
            self._code = process.returncode
        if self._log is not None:
            self._log.wait(_FLUSH_S)

    def _end(self) -> None:
        self._remove()
        self._code = 0

    def _close(self) -> None:
        if not self._address.startswith("@"):
            shutil.rmtree(Path(self._address).parent, ignore_errors=True)

    def _forget(self) -> None:
        """Close the pipe in a forked child, where it would keep the server alive."""
        if self._process is not None:
            _close_pipe(self._process)
            # A Popen warns when it is collected before its process was waited for, which only the owner can do.
            self._process.returncode = 0
        self._process = None


def _new_address() -> str:
    """Return an unused address of a Unix socket: an abstract one on Linux, because that leaves no file behind."""
    if sys.platform == "linux":
        return f"@envweave-{secrets.token_hex(6)}"
    return str(owned_folder("envweave-private-") / "socket")


def _listen(address: str) -> socket.socket:
    """Listen at an address; the file of a socket that a server before has left is removed."""
    if not address.startswith("@"):
        Path(address).unlink(missing_ok=True)
    return listen(address)


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe of a server, which makes it end."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # a server that died at once has not read all of it
            process.stdin.close()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a server and kill what is left of its process group.

    A stopped server (SIGSTOP) does not see its pipe close, and a killed one leaves processes of its environments.
    """
    _close_pipe(process)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_lock = ProcessLocal(threading.Lock)
_server: PrivateServer | None = None


def own_url() -> ReplicaUrl:
    """Return the URL of this process's private server, which unpickles as that of the reading process's own server.

    So environments go to other processes without the token, and can be used there after this process has ended.
    """
    return ReplicaUrl.of(private_server().url, own_url)


def private_server() -> PrivateServer:
    """Return the private server of this process, created at the first call; forked children share it."""
    global _server
    with _lock.value:
        if _server is None or _server.is_orphan:
            _server = PrivateServer()
    return _server


class SubprocessProvider(Provider):
    """Provider that starts private servers in child processes; it has no options."""

    name = "subprocess"
    shares_modules = same_packages = True

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> partial[PrivateServer]:
        """Return a function that starts a private server."""
        return partial(_started)

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """Return the URL of this process's private server, or the URLs of ``replicas=`` further servers."""
        return super().urls(name, image, options) if {"replicas", "warm"} & options.keys() else [own_url()]


def _started(token: str | None = None, ids: Sequence[str] = ()) -> PrivateServer:
    return PrivateServer(token=token, ids=ids).wait()
