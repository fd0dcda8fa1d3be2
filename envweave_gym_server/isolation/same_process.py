"""Environments in the server's own process, which all sessions share."""

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


class SameProcess:
    """Makes environments here."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def open(self, create: Create) -> HostedEnv:
        """The environment that a client asks for."""
        offer = self._offers.find(create.env_id)
        with _reported("made", offer.name):
            return offer.serve(create, threads=True)

    def describe(self, create: Create) -> dict[str, Any]:
        """What a client has to know of an environment before it makes one."""
        offer = self._offers.find(create.env_id)
        with _reported("made", offer.name):
            served = offer.serve(create, threads=True)
        try:
            with _reported("described", offer.name):
                return served.describe()
        finally:
            try:
                served.close()
            except BaseException as error:  # noqa: BLE001 - an environment may raise anything, also here
                _crash("closed", offer.name, error)

    def close(self) -> None:
        """Leave nothing behind: whatever there is, sessions own."""


@contextmanager
def _reported(what: str, name: str) -> Generator[None]:
    """Say of which environment an exception is, where that does not say it itself."""
    try:
        yield
    except (*REFUSALS, EnvweaveError):
        raise
    except BaseException as error:
        if is_exhaustion(error):
            raise
        raise _crash(what, name, error) from error


def _crash(what: str, name: str, error: BaseException) -> EnvironmentCrashed:
    """Log that an environment raised where it is no episode's fault, and say so."""
    _log.warning(f"environment not {what}", extra={"env": name, **trace_of(error)})
    env_id = name.rpartition(":")[2]  # without the modules that register it, which clients do not care for
    crash = EnvironmentCrashed(f"{env_id} cannot be {what}: {fault_of(error).message}")
    crash.cause = type(error).__name__
    return crash
