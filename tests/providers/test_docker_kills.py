"""Containers that are killed one after the other under a vector: honest losses, and nothing left behind."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from engines import client, ours
from servers import until

import envweave_gym as ew
from envweave_gym.containers.network import NAME
from envweave_gym.containers.ownership import OWNER
from envweave_gym.envs.toy.counter import CounterEnv
from envweave_gym.episode.stream import stream_of

__all__ = ["client"]
CONTAINERS, ROWS, KILLS = 5, 32, 8
MEMORY = 257 << 20
COUNTER, TARGET = "envweave/Counter-v0", 1_000_000


@pytest.mark.slow
def test_a_container_killed_every_second_is_its_rows_loss_alone(client: Any) -> None:
    before = len(ours(client))
    env = ew.make(
        COUNTER,
        num_envs=CONTAINERS * ROWS,
        backend="docker",
        replicas=CONTAINERS,
        memory=MEMORY,
        target=TARGET,
        max_steps=50,
        call_deadline=20.0,
        reset_deadline=30.0,
    )
    over, killed = threading.Event(), list[str]()

    def kill() -> None:
        rng, until = random.Random(5), time.monotonic() + 90
        while len(killed) < KILLS and not over.wait(1.0) and time.monotonic() < until:
            mine = [one for one in ours(client) if one.attrs["HostConfig"]["Memory"] == MEMORY]
            running = [one for one in mine if one.status == "running"]
            if running:  # on a busy machine all may be starting again
                victim = rng.choice(running)
                victim.kill()
                killed.append(victim.name)
        over.set()

    killer = threading.Thread(target=kill, daemon=True)
    rollout = Rollout(env)
    killer.start()
    while not over.is_set():
        rollout.step()
    killer.join()
    assert len(killed) == KILLS
    assert rollout.lost >= 2 * ROWS  # one that was still starting has no rows to lose
    rollout.play_until_whole()
    reported = f"{rollout.steps} steps, {len(killed)} kills, {rollout.lost} rows lost"
    print(f"{reported}, slowest step {rollout.slowest:.1f} s")
    env.close()
    assert len(ours(client)) == before
    assert_nothing_is_left(client)


def test_all_containers_of_a_killed_owner_go_when_the_next_one_starts(client: Any) -> None:
    program = (
        "import envweave_gym as ew\n"
        f"env = ew.make({COUNTER!r}, num_envs=64, backend='docker', replicas={CONTAINERS}, memory='256m')\n"
        "env.reset(seed=1)\n"
        "from envweave_gym.containers.ownership import OWNER, labels_of_owner\n"
        "print(labels_of_owner()[OWNER], flush=True)\n"
        "while True: env.step(env.action_space.sample())\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    label = f"{OWNER}={owner.stdout.readline().strip()}"
    assert len(client.containers.list(filters={"label": label}, ignore_removed=True)) == CONTAINERS
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    env = ew.make(COUNTER, backend="docker")
    until(lambda: not client.containers.list(all=True, filters={"label": label}, ignore_removed=True))
    env.close()
    assert_nothing_is_left(client)


def assert_nothing_is_left(client: Any) -> None:
    """No volume, and no network unless another process has containers in it, or is about to."""
    assert client.volumes.list(filters={"dangling": True}) == []
    there = {"all": True, "filters": {"network": NAME}, "ignore_removed": True}
    until(lambda: client.containers.list(**there) or not client.networks.list(names=[f"^{NAME}$"]))


class Rollout:
    """Steps all rows, and checks that each counts, or says that it was lost."""

    def __init__(self, env: Any) -> None:
        self.env, self.steps, self.lost, self.slowest = env, 0, 0, 0.0
        self.count = env.reset(seed=1)[0]["count"].copy()
        self.fresh = np.zeros(env.num_envs, np.bool_)

    def step(self) -> int:
        """One step; how many rows were lost in it."""
        started, rows = time.monotonic(), self.env.num_envs
        observed, rewards, terminated, truncated, infos = self.env.step({"delta": np.ones(rows, np.int64)})
        self.slowest = max(self.slowest, time.monotonic() - started)
        self.steps += 1
        count, faulty = observed["count"], infos.get("_fault", np.zeros(rows, np.bool_))
        going = ~self.fresh & ~faulty
        assert (count[going] == self.count[going] + 1).all()
        assert not terminated.any()
        assert not rewards.any()
        assert (truncated | self.fresh)[faulty].all()
        assert not ew.trainable(infos)[faulty].any()
        streams = stream_of(infos)
        for row in np.flatnonzero(self.fresh & ~faulty):
            assert count[row] == first_count(streams[row].events[0].data["seed"])
        self.count, self.fresh = count.copy(), truncated.copy()
        self.lost += int(faulty.sum())
        return int(faulty.sum())

    def play_until_whole(self) -> None:
        """Until every container serves again: a whole episode without a loss."""
        until, calm = time.monotonic() + 60, 0
        while calm < 60:
            calm = 0 if self.step() else calm + 1
            assert time.monotonic() < until


def first_count(seed: int) -> int:
    """What the counter shows after a reset with this seed."""
    return int(CounterEnv(target=TARGET).reset(seed=seed)[0]["count"])
