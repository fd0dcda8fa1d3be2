"""How a server is, as far as it answers."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from envweave_gym.remote.address import unix_path
from envweave_gym.remote.dialling import at_unix_socket


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Whether a server takes calls."""
    return _answer(url, "/health", timeout)[0] == 200


def answers(url: str, timeout: float) -> bool:
    """Whether a server answers at all: one that is full, or is stopping, does too."""
    return _answer(url, "/health", timeout)[0] != 0


def sessions_of(url: str, token: str | None, timeout: float) -> int | None:
    """How many sessions a server has open, as far as it says so."""
    status, text = _answer(url, "/metrics", timeout, token)
    for line in text.splitlines() if status == 200 else ():
        name, _, number = line.partition(" ")
        if name == "envweave_sessions":
            return int(float(number))
    return None


def _answer(url: str, path: str, timeout: float, token: str | None = None) -> tuple[int, str]:
    """The status and the text of what a server answers; the status is 0 where it does not."""
    at = unix_path(url)
    place = urlsplit(url if at is None else "http://localhost")
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)
    try:
        if at is not None:
            connection.sock = at_unix_socket(at, timeout)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()
