"""Asks a server over HTTP whether it is healthy, and how many sessions it has."""

from __future__ import annotations

import time

from envweave_gym.net.http import HttpConnection

_LARGEST = 1 << 24


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Return whether a server takes calls."""
    return _get(url, "/health", timeout)[0] == 200


def answers(url: str, timeout: float) -> bool:
    """Return whether a server answers at all: one that is full, or is stopping, does too."""
    return _get(url, "/health", timeout)[0] != 0


def sessions_of(url: str, token: str | None, timeout: float) -> int | None:
    """Return how many sessions a server has open, if it says so."""
    status, text = _get(url, "/metrics", timeout, token)
    for line in text.splitlines() if status == 200 else ():
        name, _, number = line.partition(" ")
        if name == "envweave_sessions":
            return int(float(number))
    return None


def _get(url: str, path: str, timeout: float, token: str | None = None) -> tuple[int, str]:
    """Return the status and the text of a response; the status is 0 where there is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with HttpConnection(url) as connection:
            response = connection.request("GET", path, time.monotonic() + timeout, headers)
            return response.status, response.body(_LARGEST).decode(errors="replace")
    except OSError:
        return 0, ""
