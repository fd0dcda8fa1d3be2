"""Thread that copies what a child process writes into a pipe to stderr, and retains its end for error messages."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_LOG_LIMIT_BYTES = 1 << 18
"""Number of bytes at the end of a log that are retained."""
_STDERR = 2


class PipeLog:
    """Thread that copies a server's stderr to that of this process, and retains its end."""

    def __init__(self, descriptor: int) -> None:
        """Start the thread; ``descriptor`` is the reading end of a pipe, read until all writers have closed it."""
        self._descriptor, self._retained = descriptor, bytearray()
        self._thread = threading.Thread(target=self._read, name="log of a server", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._descriptor, 1 << 16):
            with suppress(OSError):  # this process has closed its stderr
                os.write(_STDERR, chunk)
            self._retained += chunk
            del self._retained[:-_LOG_LIMIT_BYTES]
        os.close(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the server and its child processes have closed the pipe."""
        self._thread.join(seconds)

    def text(self) -> str:
        """Return the retained text."""
        return bytes(self._retained).decode(errors="replace")

    def forget(self) -> None:
        """Close the pipe in a forked process, which has no copy of the thread."""
        with suppress(OSError):
            os.close(self._descriptor)
