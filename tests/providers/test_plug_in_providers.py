from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import envweave_gym as ew
from envweave_gym.core import plug_ins
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
def plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed package with providers of its own."""
    values = {
        "localcluster": "local_cluster:LocalCluster",
        "nothing": "local_cluster:Nothing",
        "missing": "no_such_module:Thing",
        "docker": "local_cluster:LocalCluster",
    }
    entries = [EntryPoint(name, value, "envweave_gym.providers") for name, value in values.items()]
    (tmp_path / "local_cluster.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        plug_ins, "entry_points", lambda group: [one for one in entries if one.group == group]
    )
    monkeypatch.setattr(base._table, "_loaded", {})
    yield lambda: sys.modules["local_cluster"]
    sys.modules.pop("local_cluster", None)


def test_environments_and_fleets_run_on_the_backend_of_a_plug_in(plug_in: Any) -> None:
    with gym.make(COUNTER, backend="localcluster", partition="gpu", target=2) as env:
        env.reset(seed=1)
        assert env.step({"delta": 2})[2] is True
    with ew.Fleet("localcluster", replicas=1, ids=[COUNTER]) as fleet:
        assert fleet.backend == "localcluster"
    assert plug_in().started == [("gpu", ()), ("default", (COUNTER,))]


def test_nobody_takes_the_name_of_a_backend_of_ours(plug_in: Any) -> None:
    assert type(base.provider_of("docker")).__module__ == "envweave_gym.providers.docker"


def test_an_unknown_backend_is_answered_with_those_of_plug_ins_too(plug_in: Any) -> None:
    with pytest.raises(ew.InvalidArgument, match=r"'slurm' is unknown; .*'docker'.*'localcluster'"):
        gym.make(COUNTER, backend="slurm")


@pytest.mark.parametrize(("backend", "why"), [("nothing", "Provider"), ("missing", "no_such_module")])
def test_a_plug_in_that_is_none_is_named(plug_in: Any, backend: str, why: str) -> None:
    with pytest.raises(ew.NotAvailable, match=rf"for '{backend}' .*{why}"):
        gym.make(COUNTER, backend=backend)
