"""What a step prints: the first and the last of it, and how much it was."""

from __future__ import annotations

import os

_CHUNK = 1 << 18


class Output:
    """One stream of a worker, read from a pipe that does not block."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.descriptor, self._most = descriptor, most
        os.set_blocking(descriptor, False)
        self.begin()

    def begin(self) -> None:
        """Forget what was there."""
        self.size = 0
        """So many bytes have come."""
        self._head, self._tail = bytearray(), bytearray()

    def read(self) -> int:
        """Take what is there; so many bytes, and 0 where there is no more for now."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        self.size += len(data)
        room = self._most - self._most // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data_left = data[room:]
        else:
            data_left = data
        self._tail += data_left
        del self._tail[: -(self._most // 2) or None]
        return len(data)

    def drain(self) -> None:
        """Take all that is there, but no more than has come meanwhile: who writes on does not hold it up."""
        left = 1 << 20
        while left > 0 and (count := self.read()):
            left -= count

    def text(self) -> str:
        """What is kept; a line in the middle says what is not."""
        lost = self.size - len(self._head) - len(self._tail)
        mark = f"\n… {lost} bytes more …\n".encode() if lost else b""
        return (bytes(self._head) + mark + bytes(self._tail)).decode(errors="replace")

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)
