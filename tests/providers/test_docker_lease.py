"""The leases of containers: renewed while their owner lives, and heeded by those who cannot see the owner."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
from engines import CORE, client
from servers import until

from envweave_gym.containers import ownership
from envweave_gym.containers.ownership import BOOT, HOST, LEASE_S, OWNER, UNTIL, labels_of_owner
from envweave_gym.containers.sweep import left_behind, sweep
from envweave_gym.os_support.process_identity import boot_id, machine
from envweave_gym.providers.docker import DockerReplica

__all__ = ["client"]
COUNTER = "envweave/Counter-v0"


class Container(SimpleNamespace):
    """As the client library has one, as far as its lease is concerned."""

    def rename(self, name: str) -> None:
        self.new = name

    def reload(self) -> None:
        self.name = self.new


def container(seconds: float, name: str = "envweave-0123456789ab") -> Container:
    """A container whose lease ends in so many seconds."""
    return Container(name=name, new=name, labels=labels_of_owner(seconds))


def test_a_lease_is_renewed_once_half_of_it_is_over() -> None:
    fresh, late = container(LEASE_S), container(LEASE_S / 2 - 1)
    for one in (fresh, late):
        ownership.renew(one)
    assert fresh.name == "envweave-0123456789ab"
    assert late.name.startswith("envweave-0123456789ab-until-")
    assert ownership.lease_of(late) - time.time() == pytest.approx(LEASE_S, abs=5)
    renewed = late.name
    ownership.renew(late)
    assert late.name == renewed


def test_a_container_that_was_renamed_by_others_keeps_its_name_and_its_lease() -> None:
    mine = container(1, name="my-favourite")
    ownership.renew(mine)
    assert mine.name == "my-favourite"
    assert ownership.lease_of(mine) == float(mine.labels[UNTIL])


def test_an_invisible_owner_that_renews_its_lease_is_alive() -> None:
    elsewhere = {
        OWNER: "1-1",
        HOST: machine(),
        BOOT: f"{boot_id()}.4",
        UNTIL: "1",
    }
    names = ["envweave-0123456789ab", f"envweave-0123456789ac-until-{int(time.time() + 60)}"]
    there = [Container(name=name, labels=elsewhere) for name in names]
    engine = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: there))
    assert left_behind(engine) == there[:1]


def test_a_container_that_runs_is_not_disturbed_when_its_lease_is_renewed(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "RENEW_EVERY_S", 0.05)
    monkeypatch.setattr(ownership._renewal, "value", ownership._Renewal())
    replica = DockerReplica(CORE)
    env = gym.make(COUNTER, backend=replica.url)
    env.reset(seed=1)
    monkeypatch.setattr(ownership, "LEASE_S", 4 * LEASE_S)  # so half of it is over
    until(lambda: "-until-" in replica._container.name, 30)
    assert env.step({"delta": 1})[4].get("fault") is None
    assert client.containers.get(replica._container.name).id == replica._container.id
    assert replica._container.name not in sweep(client)
    env.close()
    replica.stop()
