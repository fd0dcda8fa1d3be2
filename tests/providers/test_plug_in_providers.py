from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import pytest

import envweave_gym as ew
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.providers import base

COUNTER = "envweave/Counter-v0"
MODULE = """
from functools import partial

from envweave_gym.providers.base import Provider
from envweave_gym.providers.subprocess import PrivateServer

started = []


class LocalCluster(Provider):
    name = "localcluster"

    def start(self, name, image, options):
        return partial(begin, options.pop("partition", "default"))


def begin(partition, token=None, ids=()):
    started.append((partition, tuple(ids)))
    return PrivateServer(token=token, ids=ids).wait()


class Nothing:
    pass
"""


@pytest.fixture
def plug_in(install_plug_in: Any) -> Any:
    """An installed package with providers of its own."""
    attributes = dict.fromkeys(("localcluster", "docker"), "LocalCluster") | {"nothing": "Nothing"}
    attributes["missing"] = "NoSuchThing"
    install_plug_in("envweave_gym.providers", "local_cluster", MODULE, attributes)
    return lambda: sys.modules["local_cluster"]


def test_environments_and_fleets_run_on_the_backend_of_a_plug_in(plug_in: Any) -> None:
    with gym.make(COUNTER, backend="localcluster", partition="gpu", target=2) as env:
        env.reset(seed=1)
        assert env.step({"delta": 2})[2] is True
    with ew.Fleet("localcluster", replicas=1, ids=[COUNTER]) as fleet:
        assert fleet.backend == "localcluster"
    assert plug_in().started == [("gpu", ()), ("default", (COUNTER,))]


def test_a_name_of_this_process_refuses_a_backend_without_starting_its_servers(plug_in: Any) -> None:
    ew.register("local://here", factory=CounterEnv)
    base.provider_of("localcluster")
    started = list(plug_in().started)
    with pytest.raises(ew.InvalidArgument, match="local://here is known to this process alone"):
        ew.make("local://here", backend="localcluster")
    assert plug_in().started == started


def test_a_plug_in_cannot_replace_a_built_in_backend(plug_in: Any) -> None:
    assert type(base.provider_of("docker")).__module__ == "envweave_gym.providers.docker"


def test_the_error_for_an_unknown_backend_lists_plug_ins(plug_in: Any) -> None:
    with pytest.raises(ew.InvalidArgument, match=r"'slurm' is unknown; .*'docker'.*'localcluster'"):
        gym.make(COUNTER, backend="slurm")


@pytest.mark.parametrize(("backend", "why"), [("nothing", "Provider"), ("missing", "NoSuchThing")])
def test_the_error_for_a_broken_plug_in_names_it(plug_in: Any, backend: str, why: str) -> None:
    with pytest.raises(ew.NotAvailable, match=rf"for '{backend}' .*{why}"):
        gym.make(COUNTER, backend=backend)
