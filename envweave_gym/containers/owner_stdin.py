"""A container's standard input, attached to its owner: it brings secrets, and ends when the owner does.

The engine closes the standard input of a container when the connection of its first client ends
(``StdinOnce``), and the kernel ends the connections of a process with the process, also on SIGKILL. So what
reads its standard input in the container learns that its owner is gone, without a timer or a network. What
is sent this way stands neither in ``docker inspect`` nor in ``/proc``.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from envweave_gym.os_support.process_local import in_forked_child

_SEND_TIMEOUT_S = 10.0


class OwnerStdin:
    """The owner's end. The container has to be made with ``stdin_open=True``, and not be started yet."""

    def __init__(self, client: Any, container: Any) -> None:
        self._attached = client.api.attach_socket(container.id, params={"stdin": 1, "stream": 1})
        socket_of(self._attached).settimeout(_SEND_TIMEOUT_S)
        self._is_open = True
        in_forked_child(self, OwnerStdin.forget)

    def send(self, data: bytes) -> None:
        """Write to it; raises ``OSError`` where the container or the engine is gone."""
        socket_of(self._attached).sendall(data)

    def close(self) -> None:
        """End it, and so what reads it; a second time does nothing."""
        if self._is_open:
            self._is_open = False
            hang_up(self._attached)

    def forget(self) -> None:
        """In a forked process: close the copy of the connection, which would outlive the owner's.

        The number stays open, on ``/dev/null``: the objects around it close it when they are collected.
        """
        self._is_open = False
        with suppress(OSError, ValueError):  # it was closed before the fork
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, self._attached.fileno(), inheritable=False)
            os.close(null)


def socket_of(attached: Any) -> Any:
    """The socket of an attached connection: docker-py gives a file around it, over TLS the socket itself."""
    return getattr(attached, "_sock", attached)


def hang_up(attached: Any) -> None:
    """End a connection of a container, and close it; the response around it would keep it open."""
    with suppress(OSError):  # the other side has ended it
        socket_of(attached).shutdown(socket.SHUT_RDWR)
    attached._response.close()
    attached.close()
