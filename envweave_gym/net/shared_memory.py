"""Memory files for large frames: both ends of a Unix socket map the file, so the kernel copies nothing.

The end that receives frames creates the file and passes its descriptor over the socket; the other end writes
one frame at a time into it. No file is left behind: it disappears with the last process that has it open.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from contextlib import suppress

SHARED_FRAME = 1 << 15
"""Size in bytes from which shared memory is faster than the socket (measured, see docs/benchmarks.md)."""
_SMALLEST_BYTES = 1 << 20
_HEAD_BYTES = 64
"""Bytes before the frame; the first of them is 1 while the file holds a frame that was not taken yet."""
_SEALS = 0 if sys.platform != "linux" else fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SharedMemory:
    """Mapped memory file with room for one frame."""

    def __init__(self, descriptor: int) -> None:
        """Map the file; raise ``OSError`` if its size is not sealed.

        A peer that shrinks the file would kill this process by SIGBUS at the next read.
        """
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise PermissionError("the size of the memory file is not sealed")
        size = os.fstat(descriptor).st_size
        self._memory = mmap.mmap(descriptor, size)
        self.capacity = size - _HEAD_BYTES
        """Size of the largest frame that fits, in bytes."""

    def put(self, frame: bytes) -> bool:
        """Write a frame; return ``False`` if it does not fit, or if the peer has not taken the previous one."""
        memory = self._memory
        if memory.closed or len(frame) > self.capacity or memory[0]:
            return False
        memory[_HEAD_BYTES : _HEAD_BYTES + len(frame)] = frame
        memory[0] = 1  # after the bytes: a peer that is killed in between has left no half frame
        return True

    def take(self, size: int) -> bytes:
        """Return a copy of the frame and free the memory; raise ``ConnectionError`` if there is none of that size."""
        if self._memory.closed or size > self.capacity or not self._memory[0]:
            raise ConnectionError(f"no frame of {size} bytes is in the shared memory for {self.capacity}")
        frame = self._memory[_HEAD_BYTES : _HEAD_BYTES + size]
        self._memory[0] = 0
        return frame

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()


def new_memory(size: int) -> tuple[SharedMemory, int] | None:
    """Create and map a memory file for frames of ``size`` bytes, and return it with its descriptor.

    Return ``None`` if that fails: large frames go over the socket then.
    """
    with suppress(OSError, AttributeError):  # no descriptors or memory left, or a system without memory files
        descriptor = os.memfd_create("envweave frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _HEAD_BYTES + max(_SMALLEST_BYTES, 1 << (size - 1).bit_length()))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
            return SharedMemory(descriptor), descriptor
        except BaseException:
            os.close(descriptor)
            raise
    return None
