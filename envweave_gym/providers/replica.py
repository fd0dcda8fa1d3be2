"""What every provider gives: one server, which its process keeps up."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from envweave_gym.faults import NotAvailable

_PAUSE = 0.01
_LAST_WORDS = 2000


@runtime_checkable
class Replica(Protocol):
    """One server process, wherever it runs; clients know it by its URL."""

    url: str

    def ensure(self) -> None:
        """Start it unless it runs, behind the same URL; what its processes knew is lost then."""
        ...

    def logs(self) -> str:
        """What it has written."""
        ...

    def stop(self) -> None:
        """End it for good, and leave nothing behind."""
        ...


def wait_until_healthy(url: str, seconds: float, ended: Callable[[], str | None], what: str) -> None:
    """Wait for the health check of a server that has just been started.

    ``ended`` says why it has ended, where it has, and ``what`` names it in errors.
    """
    deadline, asked = time.monotonic() + seconds, 0
    while not is_healthy(url):
        asked += 1
        if asked % 10 == 0 and (why := ended()) is not None:
            raise NotAvailable(f"{what} ended before its server answered: {why}")
        if time.monotonic() > deadline:
            raise NotAvailable(
                f"{what} did not serve within {seconds:g} s; is 'envweave serve' what it runs?"
            )
        time.sleep(_PAUSE)


def is_healthy(url: str, timeout: float = 1.0) -> bool:
    """Whether a server answers its health check."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def last_words(log: str) -> str:
    """The end of a log, in one line."""
    return " | ".join(line.strip() for line in log[-_LAST_WORDS:].splitlines() if line.strip()) or "(no log)"
