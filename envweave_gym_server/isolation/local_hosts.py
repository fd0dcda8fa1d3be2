"""Hosts in the server's own process, one for each session."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from envweave_gym.core.faults import REFUSALS, EnvironmentCrashed, EnvweaveError, fault_of
from envweave_gym.wire.messages import Create
from envweave_gym_server.core.errors import is_exhaustion
from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.environments.hosted_env import HostedEnv
from envweave_gym_server.offers.offers import Offers

_log = logging.getLogger(__name__)


class LocalHosts:
    """Factory of environments in this process."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def open(self, create: Create) -> HostedEnv:
        """Make the environment that a client requests."""
        offer = self._offers.find(create.env_id)
        with _crashes("made", offer.name):
            return offer.serve(create, threads=True)

    def describe(self, create: Create) -> dict[str, Any]:
        """Return the description of an environment, which is made and closed for this."""
        name = self._offers.find(create.env_id).name
        env = self.open(create)
        try:
            with _crashes("described", name):
                return env.describe()
        finally:
            try:
                env.close()
            except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also here
                _crash("closed", name, error)

    def close(self) -> None:
        """Do nothing: all environments belong to sessions."""


@contextmanager
def _crashes(action: str, name: str) -> Generator[None]:
    """Convert exceptions of an environment to ``EnvironmentCrashed``; refusals pass unchanged.

    ``action`` and ``name`` are for the message.
    """
    try:
        yield
    except (*REFUSALS, EnvweaveError):
        raise
    except BaseException as error:
        if is_exhaustion(error):
            raise
        raise _crash(action, name, error) from error


def _crash(action: str, name: str, error: BaseException) -> EnvironmentCrashed:
    """Log that an environment raised outside an episode, and return the error for the client."""
    _log.warning(f"environment not {action}", extra={"env": name, **trace_of(error)})
    env_id = name.rpartition(":")[2]  # without the modules that register it, which mean nothing to clients
    crash = EnvironmentCrashed(f"{env_id} cannot be {action}: {fault_of(error).message}")
    crash.cause = type(error).__name__
    return crash
