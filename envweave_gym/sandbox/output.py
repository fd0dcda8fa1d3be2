"""What a step prints: the first and the last of it, and how much it was."""

from __future__ import annotations

import os

_CHUNK, _MOST_AT_ONCE = 1 << 18, 1 << 20


class Output:
    """One stream of a worker, read from a pipe that does not block."""

    def __init__(self, most: int) -> None:
        """Keep so many bytes at most."""
        self.descriptor, self.theirs = os.pipe()
        """Our end, and that of the worker."""
        self._most = most
        self.is_over = False
        """Whether nobody has its other end any more."""
        os.set_blocking(self.descriptor, False)
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
        count = len(data)
        self.is_over = count == 0
        self.size += count
        room = self._most - self._most // 2 - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        del self._tail[: -(self._most // 2) or None]
        return count

    def drain(self) -> None:
        """Take all that is there, but not for ever what is written meanwhile."""
        left = _MOST_AT_ONCE
        while left > 0 and (count := self.read()):
            left -= count

    def text(self) -> str:
        """What is kept; a line in the middle says what is not."""
        lost = self.size - len(self._head) - len(self._tail)
        mark = f"\n… {lost} bytes more …\n".encode() if lost else b""
        return (bytes(self._head) + mark + bytes(self._tail)).decode(errors="replace")

    def give(self) -> None:
        """The worker has its end now, and this process has it no more."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def close(self) -> None:
        """Close it."""
        self.give()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
