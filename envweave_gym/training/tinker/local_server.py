"""A local Tinker server as a child process: it listens on a free port of this machine, and ends with its owner."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from envweave_gym.core.faults import NotAvailable
from envweave_gym.os_support.process_local import in_forked_child

STARTUP_S = 180.0
"""Time to start; the first start of a machine trains the tiny base model."""
EXPECTED_STARTUP_S = 10.0
"""A start that takes longer is reported."""
GRACE_S = 3.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")
_LAST_LINES = 20


class LocalServer:
    """The program ``python -m envweave_gym_server.tinker`` with a key of its own; use it as a context manager."""

    def __init__(
        self,
        *arguments: str,
        folder: str | Path | None = None,
        wait: bool = True,
        report: Callable[[str], Any] | None = None,
    ) -> None:
        """Start the server with further ``arguments`` of its command line.

        Checkpoints go to ``folder``, by default a temporary one that :meth:`close` deletes. A start that takes long is
        reported.
        """
        self._report = report
        self._scratch = None if folder else tempfile.TemporaryDirectory(prefix="envweave-tinker-")
        self.folder = Path(folder or getattr(self._scratch, "name", ""))
        self.api_key = f"tml-local-{secrets.token_hex(16)}"
        self._arguments, self._port = list(arguments), 0
        self._process: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._ready = threading.Event()
        in_forked_child(self, LocalServer._forget)
        try:
            self._start()
            if wait:
                self.wait()
        except BaseException:  # also Ctrl-C: nobody has the object yet to close it
            self.close()
            raise

    @property
    def base_url(self) -> str:
        """URL for ``TINKER_BASE_URL``; the port stays the same after :meth:`restart`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process ID of the server, ``None`` if it does not run."""
        return self._process.pid if self._process is not None and self.is_running else None

    def _start(self) -> None:
        self._ready = ready = (
            threading.Event()
        )  # one for each process: the old one's thread may still set its own
        command = [sys.executable, "-m", "envweave_gym_server.tinker", *self._command_line()]
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # The server ends when its standard input closes, and that closes however this process ends.
            env={**os.environ, "PYTHONPATH": paths, "TINKER_API_KEY": self.api_key, "ENVWEAVE_OWNER_FD": "0"},
            start_new_session=True,
        )
        output = self._process.stdout
        assert output is not None
        threading.Thread(target=self._read, args=[output, ready], name="Tinker server", daemon=True).start()

    def _command_line(self) -> Sequence[str]:
        return [
            "--port",
            str(self._port),
            "--checkpoints",
            str(self.folder),
            *self._arguments,
        ]

    def _read(self, output: IO[str], ready: threading.Event) -> None:
        """Retain the last lines of the output in a thread, and find the port in it."""
        with output:
            for line in output:
                self._lines.append(line.rstrip())
                if not ready.is_set() and (match := _ADDRESS.search(line)):
                    self._port = int(match[1])
                    ready.set()
        ready.set()

    def wait(self) -> None:
        """Wait until the server listens; raise ``NotAvailable`` with its last lines if it ended instead."""
        if not self._ready.wait(EXPECTED_STARTUP_S) and self._report is not None:
            self._report(
                "waiting for the local Tinker server to start; the first start on a machine trains the tiny base model"
            )
        self._ready.wait(STARTUP_S - EXPECTED_STARTUP_S)
        if self._port and self.is_running:
            return
        self.end()
        last = " ".join(list(self._lines)[-3:]) or f"it printed no address within {STARTUP_S:g} s"
        self.close()
        raise NotAvailable(f"the local Tinker server did not start: {last}")

    def end(self) -> None:
        """End the process, and retain the checkpoints."""
        process, self._process = self._process, None
        if process is None:
            return
        _close_stdin(process)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            _close_stdin(self._process)

    def restart(self) -> None:
        """End the process if it runs, and start it again with the same port, key and checkpoints."""
        self.end()
        self._start()
        self.wait()

    def close(self) -> None:
        """End the process, and delete the checkpoints if they are in a temporary folder."""
        self.end()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _forget(self) -> None:
        """Close the pipe in a forked child, where it would keep the server alive."""
        if self._process is not None:
            _close_stdin(self._process)
            self._process.returncode = 0  # only the owner can wait for it
        self._process = None

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _close_stdin(process: subprocess.Popen[str]) -> None:
    """Close the pipe of a server, which makes it end."""
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
