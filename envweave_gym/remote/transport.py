"""Transports: how frames get to a server and their replies back."""

from __future__ import annotations

from typing import Protocol

from envweave_gym.net.deadlines import too_late


class Transport(Protocol):
    """Sends frames and receives their replies in the same order, each before a deadline for the whole of it.

    Losses are ``ConnectionError``, and ``TimeoutError`` where the deadline is over. What would fail the same
    way once more, such as a frame larger than the server takes, is raised as what it is.
    """

    def send(self, frame: bytes, deadline: float, before: bytes = b"") -> None:
        """Send a frame, and perhaps one before it; the reply to the last one need not have come."""
        ...

    def receive(self, deadline: float) -> bytes:
        """The reply to the oldest frame whose reply has not been received."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def lost(url: str, error: Exception | str) -> Exception:
    """The loss that an error of a connection is; a refused connection stays one."""
    if isinstance(error, TimeoutError):
        return too_late(url)
    reason = str(error) or type(error).__name__
    kind = ConnectionRefusedError if isinstance(error, ConnectionRefusedError) else ConnectionError
    subject = f"{url}:" if isinstance(error, str) else f"{url} does not answer:"
    return kind(reason if reason.startswith(url) else f"{subject} {reason}")
