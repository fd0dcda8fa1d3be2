"""A private server in a process of its own, on loopback, for this process and those it forks.

The listening socket belongs to this process: the port is known before the server runs, clients that come too
early wait in its queue, and a server that died is started again behind the same address. The server holds the
other end of a pipe and ends when that closes, whichever way its owner ends.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from typing import Any

from envweave_gym.faults import PACKAGE, MissingExtra, NotAvailable
from envweave_gym.remote.address import remember_token
from envweave_gym.remote.upkeep import Upkeep, keep_up

_BACKLOG = 2048
_PATIENCE = 10.0
_lock = threading.Lock()
_server: PrivateServer | None = None


class PrivateServer:
    """One server process, started when it is needed, and again when it has died."""

    def __init__(self) -> None:
        for module in ("flask", "gunicorn", "wsproto"):
            if find_spec(module) is None:
                raise MissingExtra(
                    f"backend='subprocess' needs {module}, which is not installed: "
                    f"pip install '{PACKAGE}[server]'"
                )
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._token = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        remember_token(self.url, self._token)
        keep_up(self.url, Upkeep(self.ensure))

    def ensure(self) -> None:
        """Start the server unless it runs; a process that was forked from the owner leaves that to it."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            if (self._process.returncode or 0) > 0:
                code, self._process = self._process.returncode, None
                raise NotAvailable(
                    f"the server of backend='subprocess' ended with exit code {code}; its error is on stderr"
                )
        command = [sys.executable, "-m", "envweave_gym_server.private", str(self._listener.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
            start_new_session=True,
        )
        pipe = self._process.stdin
        if pipe is None:
            raise NotAvailable(f"the server of backend='subprocess' got no pipe: {command}")
        pipe.write(json.dumps({"token": self._token, "paths": sys.path}).encode() + b"\n")
        pipe.flush()

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def stop(self) -> None:
        """Let the server end for good, and wait until it has."""
        if os.getpid() != self._owner:
            return
        keep_up(self.url, None)
        with self._lock:
            self._listener.close()
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                process.stdin.close()
                try:
                    process.wait(_PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def forget(self) -> None:
        """In a process forked from the owner: let go of what keeps the server alive."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        self._listener.close()


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
            atexit.register(_server.stop)
            os.register_at_fork(after_in_child=_server.forget)
    return _server
