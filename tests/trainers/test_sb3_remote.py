"""Stable-Baselines3 trains on an environment in another process as it does on one here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed: run make trainers")
pytest.importorskip("flask", reason="the server is not installed: pip install 'envweave-gym[server]'")

import torch
from stable_baselines3 import PPO

import envweave_gym  # noqa: F401 - registers the IDs
from envweave_gym.remote.env import RemoteEnv

pytestmark = pytest.mark.trainers
LINE_WORLD = "envweave/LineWorld-v0"


def trained(**kwargs: Any) -> PPO:
    """PPO after a few thousand steps, which takes a seed for everything."""
    torch.set_num_threads(1)
    env = gym.make(LINE_WORLD, length=5, **kwargs)
    model = PPO("MlpPolicy", env, seed=0, n_steps=256, batch_size=64, learning_rate=3e-3, device="cpu")
    model.learn(6_000)
    return model


def test_ppo_learns_over_the_wire_what_it_learns_here() -> None:
    here, there = trained(), trained(backend="subprocess")
    assert there.env is not None
    assert isinstance(there.env.unwrapped.envs[0].unwrapped, RemoteEnv)
    for mine, theirs in zip(here.policy.parameters(), there.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    env, reached = gym.make(LINE_WORLD, length=5), 0
    for episode in range(100):
        seen, _ = env.reset(seed=1_000_000 + episode)
        over = False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(int(there.predict(seen, deterministic=True)[0]))
            over = terminated or truncated
            reached += reward > 0
    assert reached >= 95
