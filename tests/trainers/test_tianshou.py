"""Tianshou takes our games as they are: the example of docs/trainers.md learns one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tianshou", reason="Tianshou is not installed: run make trainers")

import numpy as np
import pettingzoo
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv, SubprocVectorEnv

import envweave_gym
from envweave_gym.envs.games.kuhn_rules import INFORMATION_SETS, best_response_value, game_value

pytestmark = pytest.mark.trainers

HELD_OUT = 1_000_000
AT_RANDOM = dict.fromkeys(INFORMATION_SETS, 0.5)


def table() -> PettingZooEnv:
    return PettingZooEnv(pettingzoo.make("aec", "envweave/KuhnPoker-v0"))


def random_player(env: PettingZooEnv) -> MARLRandomDiscreteMaskedOffPolicyAlgorithm:
    return MARLRandomDiscreteMaskedOffPolicyAlgorithm(env.action_space)


def winnings(first: DQN, hands: int) -> float:
    """What ``first`` wins a hand against random moves when it does not explore."""
    env = table()
    game = MultiAgentOffPolicyAlgorithm(algorithms=[first, random_player(env)], env=env)
    collector = Collector(game, DummyVectorEnv([table] * 10))
    collector.reset(gym_reset_kwargs={"seed": HELD_OUT})
    return float(collector.collect(n_episode=hands).returns[:, 0].mean())


def test_dqn_learns_to_beat_random_moves_in_kuhn_poker(example: Callable[[str], dict[str, Any]]) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    learner = example("tianshou_kuhn_poker")["learner"]

    earned, best = winnings(learner, 1_000), best_response_value(AT_RANDOM, 0)

    assert game_value(AT_RANDOM) == 0.125
    assert 0.7 * best < earned < 1.3 * best


@pytest.mark.parametrize("workers", [DummyVectorEnv, SubprocVectorEnv])
def test_the_replay_buffer_keeps_streams(workers: type[DummyVectorEnv | SubprocVectorEnv]) -> None:
    env, envs = table(), workers([table, table])
    game = MultiAgentOffPolicyAlgorithm(algorithms=[random_player(env), random_player(env)], env=env)
    collector = Collector(game, envs, VectorReplayBuffer(200, 2))
    collector.reset()
    collector.collect(n_step=60)
    envs.close()

    kept, _ = collector.buffer.sample(0)

    assert len(kept) == 60
    assert kept.terminated.any()
    for info, following, over in zip(kept.info, kept.obs_next.agent_id, kept.terminated, strict=True):
        asked = envweave_gym.stream_of(info).agents()
        assert asked == (() if over else (following,))
