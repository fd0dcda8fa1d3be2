"""Reads what the programs of a worker print, from a pipe, and retains the first and the last bytes of it."""

from __future__ import annotations

import os

_CHUNK_BYTES, _MAX_CHUNKS = 1 << 18, 4


class Output:
    """Reads one output stream of a worker from a non-blocking pipe, and retains its first and last bytes."""

    def __init__(self, limit: int) -> None:
        self.descriptor, self.worker_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._limit = limit
        self.is_closed = False
        """Whether every process has closed the worker's end of the pipe."""
        self.size, self._head, self._tail = 0, bytearray(), bytearray()

    def restart(self) -> None:
        """Drop the output so far, including what is still in the pipe."""
        for _ in range(_MAX_CHUNKS):  # a limit, as a process may be writing all the time
            if not self.read():
                break
        self.size, self._head, self._tail = 0, bytearray(), bytearray()

    def read(self) -> int:
        """Read one chunk from the pipe; return its number of bytes, or 0 if there are none now."""
        try:
            data = os.read(self.descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        count = len(data)
        self.is_closed = count == 0
        self.size += count
        room = self._limit - self._limit // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        del self._tail[: -(self._limit // 2) or None]  # [:-0] would delete nothing
        return count

    def text(self) -> str:
        """Read what is in the pipe; return the retained text, with a mark in place of the dropped middle."""
        for _ in range(_MAX_CHUNKS):
            if not self.read():
                break
        lost = self.size - len(self._head) - len(self._tail)
        mark = f"\n… {lost} bytes more …\n".encode() if lost else b""
        return (bytes(self._head) + mark + bytes(self._tail)).decode(errors="replace")

    def close_worker_end(self) -> None:
        """Close this process's descriptor of the worker's end."""
        if self.worker_end >= 0:
            os.close(self.worker_end)
            self.worker_end = -1

    def close(self) -> None:
        """Close both ends."""
        self.close_worker_end()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
