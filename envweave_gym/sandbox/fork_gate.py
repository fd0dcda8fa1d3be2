"""Seccomp user notifications: the kernel suspends each fork of a worker until the host answers."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _RESPONSE = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_CONTINUE = 1
_CALLER_ENDED = (errno.ENOENT, errno.EINTR, errno.EAGAIN)


class ForkGate:
    """Denies all forks except one announced copy of a worker.

    A worker and its copies share one descriptor, and their sessions may live in several threads: any of them
    answers any notification, by the PID in it.
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

    def allow_copy(self, pid: int) -> None:
        """Let a worker fork a child, and that child fork the copy, which so is no child of the worker."""
        with self._lock:
            self._parents.add(pid)
            self._grandparents.add(pid)

    def allow_none(self, pid: int) -> None:
        """Take back a permission that was not used up."""
        with self._lock:
            self._parents.discard(pid)
            self._grandparents.discard(pid)

    def answer(self) -> None:
        """Answer one notification, if there still is one: receiving would block without."""
        with self._lock:
            if any(event & select.POLLIN for _, event in self._poll.poll(0)):
                self._answer()

    def _answer(self) -> None:
        buffer = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.descriptor, _RECEIVE, buffer)
            number, pid = _NOTIFICATION.unpack(buffer)[:2]
            allowed = self._use_permission(pid)
            response = _RESPONSE.pack(number, 0, 0 if allowed else -errno.EPERM, _CONTINUE if allowed else 0)
            fcntl.ioctl(self.descriptor, _SEND, bytearray(response))
        except OSError as error:
            if error.errno not in _CALLER_ENDED:
                raise

    def _use_permission(self, pid: int) -> bool:
        for allowed, holder in ((self._parents, pid), (self._grandparents, _parent_of(pid))):
            if holder in allowed:
                allowed.discard(holder)
                return True
        return False

    def shared(self) -> ForkGate:
        """Return this gate for one more user, a copy of the worker."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Close the descriptor with the last user; the kernel denies all later forks."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                os.close(self.descriptor)

    def renew_lock(self) -> None:
        """In a forked process: replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
