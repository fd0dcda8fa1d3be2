"""RLlib takes our IDs as they are: PPO solves LineWorld."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("ray.rllib.algorithms.ppo", reason="RLlib is not installed: run make trainers")

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

import envweave_gym  # noqa: F401 - registers the IDs

LINE_WORLD = "envweave/LineWorld-v0"
HELD_OUT = 1_000_000
pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_ppo_solves_line_world() -> None:
    config = (
        PPOConfig()
        .environment("envweave_gym:" + LINE_WORLD)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16)
        .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=6, lr=3e-3)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=False))
        .debugging(seed=1)
    )
    algorithm = config.build_algo()
    try:
        for _ in range(10):
            algorithm.train()
        module: Any = algorithm.get_module(DEFAULT_MODULE_ID)
        assert solved(module, 100) >= 0.95
    finally:
        algorithm.stop()


def solved(module: Any, episodes: int) -> float:
    """How often the greedy policy reaches the goal on seeds never trained on."""
    env, reached = gym.make(LINE_WORLD), 0
    for episode in range(episodes):
        seen, _ = env.reset(seed=HELD_OUT + episode)
        over = terminated = False
        while not over:
            with torch.no_grad():
                reported = module.forward_inference({"obs": torch.as_tensor(np.asarray(seen)[None])})
            action = int(reported["action_dist_inputs"].argmax())
            seen, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        reached += terminated
    return reached / episodes
