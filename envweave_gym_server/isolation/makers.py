"""The choice between environments in the server's process and in processes of their own."""

from __future__ import annotations

from typing import Any, Protocol

from envweave_gym.wire.messages import Create
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.environments.host import Host
from envweave_gym_server.isolation.same_process import SameProcess
from envweave_gym_server.offers.offers import Offers


class Makers(Protocol):
    """Makes environments."""

    def open(self, create: Create) -> Host:
        """Make the environment of a new session."""
        ...

    def describe(self, create: Create) -> dict[str, Any]:
        """Return the spaces and metadata of an environment, which is made and closed for this."""
        ...

    def close(self) -> None:
        """End the processes that no session owns."""
        ...


def makers_for(offers: Offers, settings: Settings) -> Makers:
    """The makers that ``settings.isolation`` names."""
    if settings.isolation == "thread":
        return SameProcess(offers)
    from envweave_gym_server.isolation.process_host import Workers

    return Workers(offers, settings)
