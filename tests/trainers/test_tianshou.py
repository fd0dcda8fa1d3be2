"""Tianshou takes our games as they are; ``make trainers`` gives it its own environment."""

from __future__ import annotations

import pytest

pytest.importorskip("tianshou", reason="Tianshou is tested by make trainers")

import numpy as np
import pettingzoo
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.algorithm.random import MARLRandomDiscreteMaskedOffPolicyAlgorithm
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv, SubprocVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

import envweave_gym
from envweave_gym.multiagent.kuhn_value import INFORMATION_SETS, best_response_value

pytestmark = pytest.mark.trainers

KUHN_POKER = "envweave/KuhnPoker-v0"
TABLES, HANDS = 10, 1_000
AT_RANDOM = dict.fromkeys(INFORMATION_SETS, 0.5)


def table() -> PettingZooEnv:
    return PettingZooEnv(pettingzoo.make("aec", KUHN_POKER))


def learner(env: PettingZooEnv) -> DQN:
    """A hand is at most three moves, so returns over three steps are what was really won."""
    net = Net(state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.2)
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-2),
        gamma=1.0,
        n_step_return_horizon=3,
        target_update_freq=100,
    )


def tables(seed: int) -> DummyVectorEnv:
    envs = DummyVectorEnv([table] * TABLES)
    envs.seed(seed)
    return envs


@pytest.mark.parametrize("seat", [0, 1])
def test_dqn_learns_to_beat_random_moves_in_kuhn_poker(seat: int) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    env = table()
    players = [MARLRandomDiscreteMaskedOffPolicyAlgorithm(env.action_space) for _ in range(2)]
    players[seat] = learner(env)
    game = MultiAgentOffPolicyAlgorithm(algorithms=players, env=env)
    training = Collector(game, tables(0), VectorReplayBuffer(20_000, TABLES), exploration_noise=True)
    test = Collector(game, tables(1_000_000))

    def winnings() -> float:
        test.reset()
        return float(test.collect(n_episode=HANDS).returns[:, seat].mean())

    before = winnings()
    training.reset()
    training.collect(n_step=500)
    game.run_training(
        OffPolicyTrainerParams(
            training_collector=training,
            test_collector=test,
            max_epochs=1,
            epoch_num_steps=2_000,
            collection_step_num_env_steps=20 * TABLES,
            test_step_num_episodes=100,
            batch_size=128,
            update_step_num_gradient_steps_per_sample=0.1,
            multi_agent_return_reduction=lambda returns: returns[:, seat],
            show_progress=False,
            verbose=False,
        )
    )
    after = winnings()

    assert after > before
    assert after > 0.6 * best_response_value(AT_RANDOM, seat)


@pytest.mark.parametrize("workers", [DummyVectorEnv, SubprocVectorEnv])
def test_the_replay_buffer_keeps_streams(workers: type[DummyVectorEnv | SubprocVectorEnv]) -> None:
    env = table()
    players = [MARLRandomDiscreteMaskedOffPolicyAlgorithm(env.action_space) for _ in range(2)]
    game = MultiAgentOffPolicyAlgorithm(algorithms=players, env=env)
    envs = workers([table, table])
    collector = Collector(game, envs, VectorReplayBuffer(200, 2))
    collector.reset()
    collector.collect(n_step=60)
    envs.close()

    kept, _ = collector.buffer.sample(0)
    streams = [envweave_gym.stream_of({"stream": stream}) for stream in kept.info.stream]
    asked = [stream.requests[0].agent for stream in streams]

    assert len(asked) == 60
    assert [name for name in asked if name] == [
        name for name, over in zip(kept.obs_next.agent_id, kept.terminated, strict=True) if not over
    ]
