"""Allows or denies the forks of workers: the kernel suspends each fork until the host process has decided.

The mechanism is seccomp's user notifications (``SECCOMP_RET_USER_NOTIF``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import threading

# from linux/seccomp.h: the ioctl requests, the layouts of their structures, and a flag of responses
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTIFICATION, _RESPONSE = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_CALLER_ENDED = (errno.ENOENT, errno.EINTR, errno.EAGAIN)
"""Errors that mean that the process that wanted to fork has ended or was interrupted."""


class ForkGate:
    """Denies all forks of a worker and its copies, except those that the process with the sandbox has allowed.

    The kernel suspends each fork and sends a seccomp notification with the caller's PID. A worker and the copies
    that were forked from it share one descriptor for notifications, and their sessions may run in different threads.
    So whichever session reads a notification answers it, by its PID.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._users = 1
        self._parents: set[int] = set()
        """The PIDs of processes that may fork once."""
        self._grandparents: set[int] = set()
        """The PIDs of processes of which one child may fork once."""
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def allow_copy(self, pid: int) -> None:
        """Allow the worker with this PID one double fork: it forks a child, which forks the copy and exits.

        This way the copy becomes a child of the zygote and not of the worker.
        """
        with self._lock:
            self._parents.add(pid)
            self._grandparents.add(pid)

    def allow_none(self, pid: int) -> None:
        """Withdraw the permissions that the worker with this PID has not used."""
        with self._lock:
            self._parents.discard(pid)
            self._grandparents.discard(pid)

    def answer(self) -> None:
        """Read one pending seccomp notification and let its fork go on, or fail with ``EPERM``.

        A fork goes on only if :meth:`allow_copy` has permitted it. Do nothing if no notification is pending, as
        another session may have answered it already.
        """
        with self._lock:
            if any(event & select.POLLIN for _, event in self._poll.poll(0)):  # else the ioctl would block
                self._answer()

    def _answer(self) -> None:
        buffer = bytearray(_NOTIFICATION.size)  # the kernel refuses one that is not zeroed
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
        """Count one more worker that uses this gate, a copy, and return the gate."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Count one worker less; the last one closes the descriptor, after which the kernel denies all forks."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                os.close(self.descriptor)

    def renew_lock(self) -> None:
        """Replace the lock after a fork of the host process, because a thread of the parent may have held it."""
        self._lock = threading.Lock()


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
