"""The process of an MCP server, below a keeper that ends it with its owner, whichever way that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.tools.mcp import process_keeper as keeper
from envweave_gym.tools.mcp.server_spec import ServerSpec

_PATIENCE = 4 * keeper.GRACE
_LONGEST_WORDS = 300


class KeptProcess:
    """A server that runs: what leads to it, and how it ends."""

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
        self.stdin, self.stdout = _open(self._process.stdin), _open(self._process.stdout)
        self._stderr = _open(self._process.stderr)
        self._mourning, self._epitaph = threading.Lock(), ""
        self._letting_go = threading.RLock()

    @property
    def pid(self) -> int:
        """The process of the keeper."""
        return self._process.pid

    def let_go(self) -> int:
        """End the server, by its closed stdin, TERM or KILL; a keeper that stands still is killed with it."""
        with self._letting_go:  # also the thread that reads lets go, where it hears the end first
            if not self._lifeline.closed:
                with suppress(BrokenPipeError):
                    self._lifeline.write(b"!")  # heard where a forked process holds the pipe open as well
                self._lifeline.close()
        try:
            return self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def ending(self, what: str) -> str:
        """How the server has ended, and the last thing that it said; one that has not, ends now."""
        with self._mourning:
            if not self._epitaph:
                code = self.let_go()
                said = self._stderr.read().decode(errors="replace").strip().splitlines()
                last = f": {' '.join(said[-1].split())[:_LONGEST_WORDS]}" if said else ""
                self._epitaph = f"{what} {_in_words(code)}{last}"
            return self._epitaph

    def end(self) -> None:
        """End the server if it runs, and close all that leads to it."""
        self.stdin.close()
        self.let_go()
        self._close()

    def forget(self) -> None:
        """In a forked process: close what keeps the server of the parent alive."""
        self._process.returncode = 0  # it is not ours to wait for
        self._lifeline.close()
        self._close()

    def _close(self) -> None:
        for pipe in (self.stdin, self.stdout, self._stderr):
            pipe.close()


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


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("a pipe was asked for")
    return pipe


def _in_words(code: int) -> str:
    if code == keeper.CANNOT_START:
        return "cannot be started"
    by = "" if code >= 0 else f", {signal.Signals(-code).name}"
    return f"has ended (exit code {code}{by})"
