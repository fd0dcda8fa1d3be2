"""Connection to the process that owns this server: it brings the token, and the server ends when it closes.

``ENVWEAVE_OWNER_FD`` is the number of its file descriptor. The server of a container gets it as standard input
(see :mod:`envweave_gym.containers.owner_stdin`).
"""

from __future__ import annotations

import fcntl
import os
import select

from envweave_gym.core.faults import InvalidArgument, shown

VARIABLE = "ENVWEAVE_OWNER_FD"
_STANDARD = 3
"""First descriptor after standard input, output and error, which started programs inherit."""


def owner_descriptor() -> int | None:
    """Remove ``ENVWEAVE_OWNER_FD``, and return the descriptor in it; ``None`` if it is not set."""
    given = os.environ.pop(VARIABLE, None)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal()):
        raise InvalidArgument(f"{VARIABLE}={shown(given)} is no number of an open file; give one like 0")
    return int(given)


def taken_over(descriptor: int) -> int:
    """Move the connection to a descriptor that no child inherits; a standard one becomes ``/dev/null``.

    Otherwise an environment that reads its standard input would consume the end of the connection. Reads of the
    new descriptor do not block: the replicas of a server share it, and another replica may have read the same
    bytes first.
    """
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _STANDARD)
    except OSError as error:
        raise InvalidArgument(f"{VARIABLE}={descriptor} is no open file: {error.strerror}") from None
    os.set_blocking(moved, False)
    if descriptor < _STANDARD:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, descriptor)
        os.close(null)
    else:
        os.close(descriptor)
    return moved


def is_gone(connection: int) -> bool:
    """Return whether the owner has closed its end; data that it still sends is read and dropped."""
    poll = select.poll()  # select.select cannot read descriptors from 1,024 on
    poll.register(connection, select.POLLIN)
    try:
        while poll.poll(0):
            if not os.read(connection, 4096):
                return True
    except BlockingIOError:  # another replica has read it since
        return False
    except OSError:
        return True
    return False
