"""Starts an MCP server as a process below a keeper, which ends it when this process ends in any way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support import process_keeper as keeper
from envweave_gym.tools.mcp.server_spec import ServerSpec

_PATIENCE_S = 4 * keeper.GRACE_S
"""Seconds that the keeper may take to end: it waits twice, and once more for descendants of the server."""
_TAIL_BYTES, _LONGEST_LINE = 8192, 300
"""Bytes of stderr that are retained, and characters of its last line that are shown."""


class ServerProcess:
    """The process of one server: its non-blocking pipes, and a description of how it ended."""

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
        self._ending = threading.RLock()  # reentrant: garbage collection may call end() within end()

    @property
    def keeper_pid(self) -> int:
        """The PID of the keeper."""
        return self._process.pid

    def read_stderr(self) -> bytes | None:
        """Read a piece of stderr and retain its tail for errors; return None if there is nothing to read yet."""
        piece = self.stderr.read(1 << 16)
        self._tail += piece or b""
        del self._tail[:-_TAIL_BYTES]
        return piece

    def end(self) -> int:
        """Close stdin, let the keeper end the server, and return the exit code.

        A keeper that does not react, as one that was stopped by a signal, is killed, and the server with it.
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
        """End the server if it runs; return a text with its exit code or signal, and the last line of stderr."""
        code = self.end()
        while self.read_stderr():
            pass
        lines = self._tail.decode(errors="replace").strip().splitlines()
        last = f": {' '.join(lines[-1].split())[:_LONGEST_LINE]}" if lines else ""
        return f"{keeper.describe_exit(code)}{last}"

    def close_outputs(self) -> None:
        """Close stdout and stderr."""
        self.stdout.close()
        self.stderr.close()

    def forget(self) -> None:
        """Close the pipes in a forked process; they would keep the parent's server alive."""
        self._process.returncode = 0  # the server is no child of this process, and Popen would wait for it
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
