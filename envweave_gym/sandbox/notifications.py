"""The forks of workers ask here: the kernel lets each wait until its host has answered."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE, _ANSWER = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_CONTINUE = 1
_TWICE = 2
"""So many forks it takes to have a copy that is no child of the worker."""


class Forks:
    """Refuses all forks but those that were announced."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._allowed = 0

    def allow_a_copy(self) -> None:
        """Let the worker make a copy of itself."""
        self._allowed = _TWICE

    def allow_none(self) -> None:
        """Let it make none."""
        self._allowed = 0

    def answer(self) -> None:
        """Answer who asks."""
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, buffer)
        except OSError as error:  # who has asked has died
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return
            raise
        number = _NOTICE.unpack(buffer)[0]
        allowed, self._allowed = self._allowed > 0, max(self._allowed - 1, 0)
        answer = _ANSWER.pack(number, 0, 0 if allowed else -errno.EPERM, _CONTINUE if allowed else 0)
        try:
            fcntl.ioctl(self.descriptor, _SEND, bytearray(answer))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def copy(self) -> Forks:
        """The same for a copy of the worker, which asks over the same descriptor."""
        return Forks(os.dup(self.descriptor))

    def close(self) -> None:
        """Close it; who asks from now on is refused, as there is nobody to ask."""
        os.close(self.descriptor)
