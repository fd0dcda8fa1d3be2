"""Copies the stderr of a server to that of this process, and retains the end of it."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_LIMIT = 1 << 18
"""The bytes that are retained."""
_STDERR = 2


class PipeLog:
    """Reads a pipe in a thread until the server has closed it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._retained = descriptor, bytearray()
        self._thread = threading.Thread(target=self._read, name="log of a server", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._descriptor, 1 << 16):
            with suppress(OSError):  # this process has closed its stderr
                os.write(_STDERR, chunk)
            self._retained += chunk
            del self._retained[:-_LIMIT]
        os.close(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until the server has closed it."""
        self._thread.join(seconds)

    def text(self) -> str:
        """Return the retained text."""
        return bytes(self._retained).decode(errors="replace")
