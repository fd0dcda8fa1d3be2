"""How frames get to a server and back: what every way has in common."""

from __future__ import annotations

import time
from typing import Protocol


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


def left(deadline: float, url: str) -> float:
    """So many seconds are left; none is an exception."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise too_late(url)
    return seconds


def too_late(url: str) -> TimeoutError:
    """That the deadline is over."""
    return TimeoutError(f"{url} did not answer before the deadline")


def lost(url: str, why: str) -> ConnectionError:
    """That nothing more is heard of the server, and why."""
    return ConnectionError(f"{url}: {why}")
