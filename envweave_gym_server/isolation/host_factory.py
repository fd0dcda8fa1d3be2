"""The choice between environments in the server's process and in worker processes."""

from __future__ import annotations

from typing import Any, Protocol

from envweave_gym.wire.messages import Create
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.environments.host import Host
from envweave_gym_server.isolation.local_hosts import LocalHosts
from envweave_gym_server.offers.offers import Offers


class HostFactory(Protocol):
    """Makes the hosts of sessions."""

    def open(self, create: Create) -> Host:
        """Make the environment of a new session."""
        ...

    def describe(self, create: Create) -> dict[str, Any]:
        """Return the spaces and metadata of an environment, which is made and closed for this."""
        ...

    def close(self) -> None:
        """End the processes that no session owns."""
        ...


def host_factory(offers: Offers, settings: Settings) -> HostFactory:
    """The factory that ``settings.isolation`` names."""
    if settings.isolation == "thread":
        return LocalHosts(offers)
    from envweave_gym_server.isolation.worker_hosts import WorkerHosts

    return WorkerHosts(offers, settings)
