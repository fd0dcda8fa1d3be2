"""The forks of workers ask here: the kernel lets each wait until a host has answered."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE, _ANSWER = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_CONTINUE = 1
_GONE = (errno.ENOENT, errno.EINTR, errno.EAGAIN)


class Forks:
    """Refuses all forks but those that were announced.

    A worker and its copies ask over one descriptor, and their sessions may live in several threads: any of
    them answers whoever asks, by the process that does.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._users = 1
        self._parents: set[int] = set()
        """Processes that may fork once."""
        self._grandparents: set[int] = set()
        """Processes of whose children one may fork once."""
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def allow_a_copy(self, pid: int) -> None:
        """Let a worker fork, and what it has forked fork a copy that is no child of the worker."""
        with self._lock:
            self._parents.add(pid)
            self._grandparents.add(pid)

    def allow_none(self, pid: int) -> None:
        """Let it make none."""
        with self._lock:
            self._parents.discard(pid)
            self._grandparents.discard(pid)

    def answer(self) -> None:
        """Answer one who asks, if there is one still; to receive where nobody asks would wait."""
        with self._lock:
            if any(event & select.POLLIN for _, event in self._poll.poll(0)):
                self._answer()

    def _answer(self) -> None:
        buffer = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, buffer)
            number, pid = _NOTICE.unpack(buffer)[:2]
            allowed = self._is_allowed(pid)
            answer = _ANSWER.pack(number, 0, 0 if allowed else -errno.EPERM, _CONTINUE if allowed else 0)
            fcntl.ioctl(self.descriptor, _SEND, bytearray(answer))
        except OSError as error:
            if error.errno not in _GONE:  # who has asked has died
                raise

    def _is_allowed(self, pid: int) -> bool:
        """Whether this process may fork, which it has used up then."""
        for allowed, asker in ((self._parents, pid), (self._grandparents, _parent_of(pid))):
            if asker in allowed:
                allowed.discard(asker)
                return True
        return False

    def shared(self) -> Forks:
        """The same, with one more user."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Close it with its last user; who asks from now on is refused, as there is nobody to ask."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                os.close(self.descriptor)


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
