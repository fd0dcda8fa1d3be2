"""Sockets of HTTP clients: time limits for every wait, and detection of disconnects."""

from __future__ import annotations

import socket
import struct
from typing import Any

SOCKET = "envweave.socket"
"""Key of a WSGI environ for the socket of the client; werkzeug's development server has its own key."""
TAKEN = "envweave.socket_taken"
"""Key that a view sets when a WebSocket has taken the socket, so that the server sends nothing more."""
_TIMEVAL = struct.Struct("@ll")
_FOREVER = _TIMEVAL.pack(0, 0)
_PROBES = 3
_LONGEST_S = (1 << 15) - 1
"""Longest time between two probes that Linux accepts."""


def socket_of(environ: dict[str, Any]) -> socket.socket | None:
    """Return the socket of the client that sent a request; ``None`` in tests without a network."""
    return environ.get(SOCKET) or environ.get("werkzeug.socket")


def bound_waits(client: socket.socket, seconds: float) -> None:
    """Limit each wait on a client's socket to ``seconds``: for a client to read, or to send more of a request.

    The kernel counts them, so that a step does not pay for it: a blocking ``send`` or ``recv`` then fails with
    ``EAGAIN``. The kernel also probes silent clients, and ends the connection of one that does not answer, as a
    machine that was switched off never closes it.
    """
    limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        client.setsockopt(socket.SOL_SOCKET, option, limit)
    if client.family == socket.AF_UNIX:
        return
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probing = {
        "TCP_KEEPIDLE": min(max(1, int(seconds / 2)), _LONGEST_S),
        "TCP_KEEPINTVL": min(max(1, int(seconds / 2 / _PROBES)), _LONGEST_S),
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": min(max(1, int(seconds * 1000)), _LONGEST_S * 1000),
    }
    for name, value in probing.items():
        if hasattr(socket, name):  # as far as the system has it
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def may_be_silent(client: socket.socket) -> None:
    """Remove the time limit of waiting for the client's data; probes still end the connection of a dead client."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOREVER)


def has_left(client: socket.socket) -> bool:
    """Return whether a client that waits for its answer has disconnected; data that it has sent stays unread."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
