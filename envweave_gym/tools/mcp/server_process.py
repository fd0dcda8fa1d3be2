"""The process of an MCP server, below a keeper that ends it with its owner, whichever way that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.tools.mcp import process_keeper as keeper
from envweave_gym.tools.mcp.server_spec import ServerSpec

_PATIENCE_S = 4 * keeper.GRACE_S
"""How long the keeper may take to end: it waits twice, and once more for descendants of the server."""
_TAIL_BYTES, _LONGEST_LINE = 8192, 300
"""How much of stderr is retained, and of its last line shown."""


class ServerProcess:
    """A running server: its non-blocking pipes, and how it ended."""

    def __init__(self, spec: ServerSpec) -> None:
        read, write = os.pipe()
        self._lifeline = os.fdopen(write, "wb", buffering=0)
        try:
            self._process = _started(spec, read)
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            os.close(read)
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self.stdin, self.stdout, self.stderr = (pipe for pipe in pipes if pipe is not None)
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._tail = bytearray()
        self._ending = threading.RLock()  # reentrant: garbage collection may end a server at any time

    @property
    def keeper_pid(self) -> int:
        """The PID of the keeper."""
        return self._process.pid

    def read_stderr(self) -> bytes | None:
        """Read a piece of stderr, of which the tail is retained; return None if there is nothing yet."""
        piece = self.stderr.read(1 << 16)
        self._tail += piece or b""
        del self._tail[:-_TAIL_BYTES]
        return piece

    def end(self) -> int:
        """Close stdin, after which the keeper ends the server; return its exit code.

        A keeper that does not run is killed, and the server ends with it.
        """
        with self._ending:
            self.stdin.close()
            if not self._lifeline.closed:
                with suppress(BrokenPipeError):
                    self._lifeline.write(b"!")  # a forked process may hold the pipe open
                self._lifeline.close()
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def describe_end(self) -> str:
        """End the server if it runs; return how it ended, and the last line of stderr."""
        code = self.end()
        while self.read_stderr():
            pass
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last = f": {' '.join(lines[-1].split())[:_LONGEST_LINE]}" if lines else ""
        return f"{_described(code)}{last}"

    def close_outputs(self) -> None:
        """Close stdout and stderr."""
        self.stdout.close()
        self.stderr.close()

    def forget(self) -> None:
        """In a forked process: close the pipes, which would keep the server of the parent alive."""
        self._process.returncode = 0  # it is no child of this process, and Popen would wait for it
        self._lifeline.close()
        self.stdin.close()
        self.close_outputs()


def _started(spec: ServerSpec, lifeline: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(lifeline)]
    try:
        return subprocess.Popen(
            [*program, *spec.command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=spec.cwd,
            env=spec.environment(),
            pass_fds=[lifeline],
            start_new_session=True,
        )
    except OSError as error:
        where = f" in {spec.cwd!r}" if spec.cwd else ""
        raise InvalidArgument(f"{spec} cannot be started{where}: {error.strerror}") from None


def _described(code: int) -> str:
    if code == keeper.CANNOT_START:
        return "cannot be started"
    by = "" if code >= 0 else f", {signal.Signals(-code).name}"
    return f"has ended (exit code {code}{by})"
