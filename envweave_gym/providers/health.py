"""Whether servers answer, and whether they take calls."""

from __future__ import annotations

import time

from envweave_gym.core.faults import NotAvailable
from envweave_gym.remote.address import Address


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Return whether a server takes calls."""
    return bool(_health(url, timeout))


def answers(url: str, timeout: float) -> bool:
    """Return whether a server answers at all: one that is full, or is stopping, does too."""
    return _health(url, timeout) is not None


def _health(url: str, timeout: float) -> bool | None:
    try:
        return Address(url).connector().is_healthy(time.monotonic() + timeout)
    except (OSError, NotAvailable):
        return None
