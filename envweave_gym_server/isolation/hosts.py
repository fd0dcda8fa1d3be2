"""The interface between sessions and their environments, in the server's process or in worker processes."""

from __future__ import annotations

from typing import Any, Protocol

from envweave_gym.wire.messages import Ask, Create, Reset, Step
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.isolation.local_hosts import LocalHosts
from envweave_gym_server.offers.offers import Offers


class Host(Protocol):
    """Does the calls of one session; only one thread at a time calls it."""

    may_be_killed: bool
    """Whether :meth:`kill` can end a call that is under way."""

    def do(self, message: Reset | Step, frame: bytes) -> tuple[bytes, bool]:
        """Do a reset or a step; return the frame of the reply, and whether the call counts as done."""
        ...

    def answer(self, message: Ask, frame: bytes) -> bytes:
        """Return the frame that answers a question."""
        ...

    def kill(self) -> None:
        """End the call that is under way in another thread."""
        ...

    def close(self) -> None:
        """Close the environment."""
        ...


class HostFactory(Protocol):
    """Makes the hosts of sessions."""

    def open(self, create: Create) -> Host:
        """Make the environment of a new session."""
        ...

    def describe(self, create: Create) -> dict[str, Any]:
        """Return the description of an environment, which is made and closed for this."""
        ...

    def close(self) -> None:
        """End the processes that no session owns."""
        ...


def host_factory(offers: Offers, settings: Settings) -> HostFactory:
    """Return the host factory for ``settings.isolation``."""
    if settings.isolation == "thread":
        return LocalHosts(offers)
    from envweave_gym_server.isolation.worker_hosts import WorkerHosts

    return WorkerHosts(offers, settings)
