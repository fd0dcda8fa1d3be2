"""A simulated Ray cluster for tests: three nodes on this machine, of which any but the first may die."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from servers import until
from uncounted import starting_uncounted

import envweave_gym  # noqa: F401 - registers the IDs

PLACES = ("head", "left", "right")
"""A resource that one node each has."""
ROOM = 100
UNTIL_S = 30.0
kept: set[str] = set()
"""The names of the actors that are there for as long as the cluster is."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, and this process part of them; three actors are kept, so that few tests start any."""
    with three_nodes() as nodes:
        anchor = gym.make_vec("envweave/Counter-v0", num_envs=3, backend="ray", replicas=len(PLACES))
        kept.update(actors_alive())
        yield nodes
        anchor.close()
        kept.clear()
        assert gone(), actors_alive()


@contextlib.contextmanager
def three_nodes() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        for place in PLACES:
            add_node(nodes, place)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        nodes.wait_for_nodes()
        # The scheduler hears of new nodes later than their table does; until then all actors go to the first.
        until(lambda: set(PLACES) <= ray.available_resources().keys(), UNTIL_S)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def add_node(nodes: Any, place: str) -> Any:
    """A node that has a resource of this name."""
    with starting_uncounted():  # Ray ends its processes before they could tell
        return nodes.add_node(num_cpus=2, resources={place: ROOM}, include_dashboard=False)


def actors_alive() -> list[str]:
    """The names of our actors that are there, beside those that are kept."""
    import ray

    there = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    return [name for name in there if name not in kept]


def gone(seconds: float = UNTIL_S) -> bool:
    """Whether no actor of ours is left, at the latest after so many seconds."""
    until = time.monotonic() + seconds
    while actors_alive():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
