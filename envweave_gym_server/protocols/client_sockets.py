"""The sockets of clients: no wait for the other end of one is for ever, whatever has become of it."""

from __future__ import annotations

import socket
import struct

_TIMEVAL = struct.Struct("@ll")
_FOR_EVER = _TIMEVAL.pack(0, 0)
_PROBES = 3
_LONGEST = (1 << 15) - 1
"""So many seconds Linux waits at most between two probes."""


def bound_waits(client: socket.socket, seconds: float) -> None:
    """Give a client up after so many seconds in which it takes nothing, or sends no more of a request.

    The kernel counts them, so that no step pays for it: a blocking ``send`` or ``recv`` fails with ``EAGAIN``
    then. It also asks clients that are silent whether they are there still, and ends the connection of one
    that does not answer: a machine that was switched off never says so.
    """
    limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        client.setsockopt(socket.SOL_SOCKET, option, limit)
    if client.family == socket.AF_UNIX:
        return
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _probing(seconds).items():
        if hasattr(socket, name):  # as far as the system has it
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _probing(seconds: float) -> dict[str, int]:
    return {
        "TCP_KEEPIDLE": min(max(1, int(seconds / 2)), _LONGEST),
        "TCP_KEEPINTVL": min(max(1, int(seconds / 2 / _PROBES)), _LONGEST),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": min(max(1, int(seconds * 1000)), _LONGEST * 1000),
    }


def has_left(client: socket.socket) -> bool:
    """Whether a client that waits for its answer has hung up; what it has sent stays where it is."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def may_be_silent(client: socket.socket) -> None:
    """Wait for what it sends as long as it is there."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOR_EVER)
