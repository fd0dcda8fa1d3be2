"""Standard input of a container: it carries secrets from the owner process, and closes when that process ends.

The engine closes a container's standard input when the connection of its first client ends (``StdinOnce``), and
the kernel ends a process's connections with the process, also on SIGKILL. So a server in the container notices
the end of its owner without a timer or a network. Data sent this way is visible neither in ``docker inspect``
nor in ``/proc``.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from envweave_gym.os_support.process_local import in_forked_child

_SEND_TIMEOUT_S = 10.0


class OwnerStdin:
    """Owner's end of a container's standard input.

    The container must have been created with ``stdin_open=True``, and not been started yet.
    """

    def __init__(self, client: Any, container: Any) -> None:
        self._attached = client.api.attach_socket(container.id, params={"stdin": 1, "stream": 1})
        socket_of(self._attached).settimeout(_SEND_TIMEOUT_S)
        self._is_open = True
        in_forked_child(self, OwnerStdin.forget)

    def send(self, data: bytes) -> None:
        """Write to the standard input; raise ``OSError`` if the container or the engine is gone."""
        socket_of(self._attached).sendall(data)

    def close(self) -> None:
        """Close the standard input, which ends the server that reads it."""
        if self._is_open:
            self._is_open = False
            shut_down(self._attached)

    def forget(self) -> None:
        """Close the connection in a forked child, where it would stay open after the owner has ended.

        The descriptor is redirected to ``/dev/null``, because the objects around it close it once more when
        they are garbage-collected.
        """
        self._is_open = False
        with suppress(OSError, ValueError):  # it was closed before the fork
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, self._attached.fileno(), inheritable=False)
            os.close(null)


def socket_of(attached: Any) -> Any:
    """Return the socket of an attached connection, which docker-py wraps in a file unless TLS is used."""
    return getattr(attached, "_sock", attached)


def shut_down(attached: Any) -> None:
    """Shut a connection down and close it, together with the HTTP response that would keep it open."""
    with suppress(OSError):  # the peer has closed it
        socket_of(attached).shutdown(socket.SHUT_RDWR)
    attached._response.close()
    attached.close()
