"""Runs scripts in the Python of a suite: in forks of a process that has imported it, or in fresh interpreters."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from envweave_gym.core.faults import NotAvailable

_PROGRAM = Path(__file__).parent / "inside" / "run_scripts.py"
_GRACE_S = 60.0
"""Time beyond the longest that a script may take, after which its prober counts as hung."""
_WALL_FACTOR = 5
"""That of the program inside: a script may take this multiple of its processor time altogether."""
_START_S = 300.0
MEMORY_MB = 4096.0
"""Default of the memory that a script and its processes may hold."""
_FOR_SUITES = {
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONWARNINGS": "ignore",
    "OPENBLAS_NUM_THREADS": "1",  # threads of its pool would make forks unsafe
    "OMP_NUM_THREADS": "1",
}


KILLED = "prober"
"""In place of a limit: the script has ended or stopped the process that runs scripts."""


class ProberLost(NotAvailable):
    """Raised if the process that runs scripts ends, or does not answer, while it runs one."""


class Ended(msgspec.Struct, frozen=True):
    """How a script ended."""

    status: int | None
    """Exit status; negative for a signal, ``None`` if it was killed as it exceeded a limit."""
    exceeded: str = ""
    """The limit: ``deadline`` or ``memory``; or ``KILLED``."""
    seconds: float = 0.0
    """Processor time."""
    stdout: str = ""
    stderr: str = ""


class Prober:
    """A process in a suite's Python that runs scripts, each in a child with limits; one thread uses it.

    It is started by the first script, and again after it has died.
    """

    def __init__(
        self,
        python: str | Path,
        imports: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        memory_mb: float = MEMORY_MB,
    ) -> None:
        self._memory_mb = memory_mb
        self._command = [str(python), "-u", str(_PROGRAM), *imports]
        own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
        inherited = {key: value for key, value in os.environ.items() if key not in own}
        self._environ = {**inherited, **_FOR_SUITES, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def run(self, script: str, deadline_s: float, *, fresh: bool = False, module: str = "") -> Ended:
        """Run a script; with ``fresh``, or if the suite has threads once imported, in a fresh interpreter.

        ``module`` is imported first, once for all scripts. Raise ``NotAvailable`` if the process cannot be started,
        and ``ProberLost`` if it ends.
        """
        try:
            process = self._started()
        except OSError as error:
            raise self._lost(NotAvailable, error) from error
        try:
            limits = {"deadline_s": deadline_s, "memory_mb": self._memory_mb}
            request = {"script": script, **limits, "fresh": fresh, "module": module}
            line = msgspec.json.encode(request) + b"\n"
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            return msgspec.json.decode(self._line(process, _WALL_FACTOR * deadline_s + _GRACE_S), type=Ended)
        except OSError as error:
            raise self._lost(ProberLost, error) from error

    def _lost(self, kind: type[NotAvailable], error: OSError) -> NotAvailable:
        self.close()
        return kind(f"the process of {self._command[0]} that runs scripts has ended: {error}")

    def close(self) -> None:
        """End the process with all that its scripts have started."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environ,
                start_new_session=True,
            )
            self._line(self._process, _START_S)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], timeout_s: float) -> bytes:
        """Return the next line of the process; raise ``OSError`` if it ends or is silent for too long."""
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no reply within {timeout_s:g} s")
            received = os.read(process.stdout.fileno(), 65536)
            if not received:
                raise ConnectionError("it closed its output")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def json_printed(ended: Ended) -> Any:
    """Return the JSON value in the last line that a script has printed; raise ``NotAvailable`` if it failed."""
    lines = ended.stdout.strip().splitlines()
    if ended.status != 0 or not lines:
        reason = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise NotAvailable(f"a script of the atlas failed with status {ended.status}: {reason}")
    return msgspec.json.decode(lines[-1])
