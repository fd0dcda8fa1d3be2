"""What a server writes to its stderr: it goes on to that of this process, and the end of it is kept."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_LONGEST = 1 << 18
_STDERR = 2


class PipeLog:
    """Hands on what a server writes, and keeps the end of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._kept = descriptor, bytearray()
        self._thread = threading.Thread(target=self._read, name="log of a server", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._descriptor, 1 << 16):
            with suppress(OSError):  # this process has closed its stderr
                os.write(_STDERR, chunk)
            self._kept += chunk
            del self._kept[:-_LONGEST]
        os.close(self._descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until the server has closed it."""
        self._thread.join(seconds)

    def text(self) -> str:
        """What is kept."""
        return bytes(self._kept).decode(errors="replace")
