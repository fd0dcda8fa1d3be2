"""Servers that run before anybody asks for them."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.providers.base import provider_names, provider_of
from envweave_gym.providers.options import check_number
from envweave_gym.providers.shared import pool_of
from envweave_gym.registry.catalog import cards


def warm_up(
    name: str, warm: int = 1, *, backend: str = "docker", timeout: float = 60.0, **options: Any
) -> None:
    """Keep so many servers ready for ``make(name, backend="docker")``, and wait until they are.

    ``options`` are those of ``make``: a container with one share of the machine is of no use to who asks for
    another. It returns when all are ready; ``warm=0`` ends those that nobody uses. ::

        from envweave_gym.providers.warm import warm_up

        warm_up("envweave/Counter-v0", 2)
    """
    provider = provider_of(backend)
    if provider is None:
        known = ", ".join(map(repr, provider_names()))
        raise InvalidArgument(f"{name}: backend={shown(backend)} keeps none ready; there are {known}")
    check_number(name, "warm", warm, least=0)
    card = cards().get(name.rpartition(":")[2])
    start = provider.start(name, card and card.image, options)
    if options:
        raise InvalidArgument(f"{name}: warm_up takes no option {shown(next(iter(options)))}")
    pool = pool_of(start)
    pool.keep_ready(warm)
    pool.wait(timeout)
