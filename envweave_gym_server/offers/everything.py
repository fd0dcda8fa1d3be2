"""The offers of private servers: whatever this machine can make, with any arguments."""

from __future__ import annotations

from typing import Any

import envweave_gym
from envweave_gym.registry.registering_modules import import_until_known
from envweave_gym.wire.messages import Create
from envweave_gym_server.environments.hosted_env import HostedEnv
from envweave_gym_server.environments.own_thread import OwnThread
from envweave_gym_server.offers.offers import Offer, Offers


class Everything(Offers):
    """Offers whatever this machine can make, with any arguments: the client is the operator."""

    def find(self, name: Any) -> Offer:
        """The offer of any name that is asked for."""
        return Trusted(name, name, name, ("gym", "vector", "parallel", "aec"))


class Trusted(Offer):
    """An offer that takes any arguments."""

    def check(self, create: Create) -> None:
        """Allow whatever the owner asks for."""

    def make(self, create: Create) -> Any:
        """Make what the owner asks for."""
        api: Any = "gym" if create.api == "vector" else create.api or None
        return envweave_gym.make(import_until_known(self.target), api=api, **create.kwargs)

    def _served(self, create: Create, thread: OwnThread | None = None) -> HostedEnv:
        """What the owner asks for, with any options of its resets."""
        truncates = create.kwargs.get("on_fault") == "truncate"
        return HostedEnv(self.make(create), truncates=truncates, thread=thread)
