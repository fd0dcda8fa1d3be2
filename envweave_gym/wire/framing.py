"""Frames of messages on their way: their content type, their largest size, and the sockets of actors."""

from __future__ import annotations

CONTENT_TYPE = "application/msgpack"
"""The content type of a frame in the body of an HTTP request or response."""

LARGEST_REPLY = 1 << 30
"""The limit of a reply in bytes; one that claims to be larger has been mangled on its way."""

TOO_LARGE = b""
"""Over the Unix socket of an actor, in place of a reply that is sent by a call of Ray instead."""


def socket_of_actor(name: str) -> str:
    """Return the address of the Unix socket at which the actor with this namespace and name listens."""
    return f"@envweave/{name}"
