"""AgileRL takes our simultaneous games as they are: the example of docs/trainers.md learns one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("agilerl.algorithms", reason="AgileRL is not installed: run make trainers")

import numpy as np
import pettingzoo
import torch
from agilerl.algorithms import IPPO
from agilerl.vector.pz_async_vec_env import AsyncPettingZooVecEnv

import envweave_gym
from envweave_gym import EventKind

pytestmark = pytest.mark.trainers

RACES, HELD_OUT = 8, 1_000_000


def race() -> pettingzoo.ParallelEnv[str, Any, Any]:
    return pettingzoo.make("parallel", "envweave/LineRace-v0")


def race_on(policy: IPPO | None, races: int) -> tuple[float, float]:
    """What the first runner earns a race against two that run at random, and how long a race is."""
    env, rng, earned, steps = race(), np.random.default_rng(0), 0.0, 0
    if policy is not None:
        policy.set_training_mode(False)
    for number in range(races):
        seen, _ = env.reset(seed=HELD_OUT + number)
        while env.agents:
            actions = {runner: int(rng.integers(2)) for runner in env.agents}
            if policy is not None:
                chosen, *_ = policy.get_action(obs={runner: place[None] for runner, place in seen.items()})
                actions["runner_0"] = int(chosen["runner_0"][0])
            seen, rewards, _, _, _ = env.step(actions)
            earned += rewards["runner_0"]
            steps += 1
    return earned / races, steps / races


def test_ippo_learns_to_win_races(example: Callable[[str], dict[str, Any]]) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    policy = example("agilerl_line_race")["policy"]

    (won, length), (won_at_random, length_at_random) = race_on(policy, 200), race_on(None, 200)

    assert won > 0.8
    assert won_at_random < 0.5
    assert length < length_at_random / 2


def test_streams_come_through_the_worker_processes() -> None:
    races = AsyncPettingZooVecEnv([race] * RACES)

    _, before = races.reset(seed=5)
    *_, after = races.step({runner: np.ones(RACES, np.int64) for runner in races.agents})
    races.close()

    for stream in envweave_gym.stream_of(before["runner_0"]):
        assert [event.kind for event in stream.events] == [EventKind.EPISODE_START]
        assert stream.events[0].data == {}
        assert stream.agents() == tuple(races.agents)
    for stream in envweave_gym.stream_of(after["runner_1"]):
        assert [event.agent for event in stream.of_kind(EventKind.ACT)] == races.agents
