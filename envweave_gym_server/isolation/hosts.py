"""Interface between a session and its environment, which is in the server's process or in a worker process."""

from __future__ import annotations

from typing import Any, Protocol

from envweave_gym.wire.messages import Ask, Create, Reset, Step
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.isolation.local_hosts import LocalHosts
from envweave_gym_server.offers.offers import Offers


class Host(Protocol):
    """Interface to the environment of one session, here or in a worker process; only one thread at a time calls it."""

    may_be_killed: bool
    """Whether :meth:`kill` can end a running call."""

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Execute a reset or step; return the reply frame, and false if the call was refused and changed nothing.

        ``frame`` is the encoded message. A call in which the environment crashed counts as executed: true.
        """
        ...

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """Return the reply frame to a question, which changes nothing."""
        ...

    def kill(self) -> None:
        """End the call that is running in another thread."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


class HostFactory(Protocol):
    """Factory of hosts, which make and play the environments of sessions."""

    def open(self, create: Create) -> Host:
        """Make the environment of a new session, and return its host."""
        ...

    def describe(self, create: Create) -> dict[str, Any]:
        """Make an environment to describe it, close it, and return the description."""
        ...

    def close(self) -> None:
        """End the processes that belong to no session."""
        ...


def host_factory(offers: Offers, settings: Settings) -> HostFactory:
    """Return the host factory for ``settings.isolation``."""
    if settings.isolation == "thread":
        return LocalHosts(offers)
    from envweave_gym_server.isolation.worker_hosts import WorkerHosts

    return WorkerHosts(offers, settings)
