"""A server of whatever this process can make that speaks HTTP, and is started again as a private one is."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from envweave_gym.providers.replica import AT_REST, Replica, with_code


class WebReplica(Replica):
    """One server process on loopback, which clients reach over WebSockets and plain HTTP."""

    def __init__(self) -> None:
        super().__init__("the web server of a test")
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._begin(now=False)

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def wait(self) -> None:
        """Start it, and wait until it serves."""
        self.ensure()
        self._wait_until_healthy(self.url, 60.0)

    def _make(self) -> None:
        descriptor = self._listener.fileno()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(descriptor)],
            stdin=subprocess.PIPE,
            pass_fds=[descriptor],
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"token": self.token, "paths": sys.path}).encode() + b"\n")
        self._process.stdin.flush()

    def _ended(self) -> str | None:
        if self._process is None:
            return AT_REST
        code = self._process.poll()
        return None if code is None else with_code(code, "")

    def _remove(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _close(self) -> None:
        self._listener.close()

    def logs(self) -> str:
        """Nothing: the server writes to the stderr of the tests."""
        return ""


def main() -> None:
    """Serve until the pipe on standard input closes."""
    start = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = start["paths"]
    from envweave_gym_server.app.app import create_app
    from envweave_gym_server.core.owner_pipe import taken_over
    from envweave_gym_server.gunicorn.server import GunicornServer
    from envweave_gym_server.offers.offers import Everything

    limits: dict[str, Any] = {"max_sessions": 4096, "max_rows": 1 << 20, "max_environments": 1 << 24}
    app = create_app(Everything(), token=start["token"], idle_timeout=60.0, **limits)
    GunicornServer(app, socket.socket(fileno=int(sys.argv[1])), owner=taken_over(0)).run()


if __name__ == "__main__":
    main()
