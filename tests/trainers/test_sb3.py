"""Stable-Baselines3 and SuperSuit take our IDs as they are; ``make trainers`` gives them their own environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is tested by make trainers")
pytest.importorskip("supersuit", reason="SuperSuit is tested by make trainers")

import supersuit
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import envweave_gym  # noqa: F401 - registers the IDs
from envweave_gym.multiagent import kuhn_value
from envweave_gym.multiagent.kuhn_poker import observation

pytestmark = pytest.mark.trainers

LINE_WORLD, CODE_FIX, KUHN_POKER = "envweave/LineWorld-v0", "envweave/CodeFix-v0", "envweave/KuhnPoker-v0"
HELD_OUT = 1_000_000


@pytest.fixture(autouse=True)
def _one_core() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("env_id", [LINE_WORLD, CODE_FIX])
def test_the_checker_of_stable_baselines_has_nothing_to_say(env_id: str) -> None:
    check_env(gym.make(env_id))


def returns(model: PPO, env_id: str, episodes: int) -> NDArray[np.float64]:
    """What the greedy policy earns in each of ``episodes`` on seeds never trained on."""
    env, earned = gym.make(env_id), np.zeros(episodes)
    for episode in range(episodes):
        seen, _ = env.reset(seed=HELD_OUT + episode)
        over = False
        while not over:
            action, _ = model.predict(seen, deterministic=True)
            seen, reward, terminated, truncated, _ = env.step(action)
            earned[episode] += float(reward)
            over = terminated or truncated
    return earned


def test_ppo_solves_line_world() -> None:
    model = PPO("MlpPolicy", gym.make(LINE_WORLD), n_steps=512, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(4_000)

    reached = returns(model, LINE_WORLD, 200) > 0

    assert reached.mean() >= 0.95


def trajectory(vec_env_cls: type[DummyVecEnv | SubprocVecEnv]) -> list[NDArray[Any]]:
    """Observations, rewards and ends of 60 steps of two environments."""
    env = make_vec_env(f"envweave_gym:{LINE_WORLD}", 2, seed=3, vec_env_cls=vec_env_cls)
    rng, seen = np.random.default_rng(0), [env.reset()]
    for _ in range(60):
        observations, rewards, dones, _ = env.step(rng.integers(2, size=2))
        seen += [observations, rewards, dones]
    env.close()
    return [np.asarray(column) for column in seen]


def test_environments_in_other_processes_play_the_same_episodes() -> None:
    here, elsewhere = trajectory(DummyVecEnv), trajectory(SubprocVecEnv)

    assert any(dones.any() for dones in here[3::3])
    for mine, theirs in zip(here, elsewhere, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)  # DummyVecEnv keeps rewards as float32


class BagOfTokens(BaseFeaturesExtractor):
    """The sum of the embeddings of a program's tokens."""

    def __init__(self, observation_space: gym.spaces.Box, width: int = 64) -> None:
        super().__init__(observation_space, width)
        words = int(observation_space.high.max()) + 1
        self.embedding = torch.nn.EmbeddingBag(words, width, mode="sum", padding_idx=0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens.long())


def test_ppo_fixes_programs_it_has_never_seen() -> None:
    env = make_vec_env(CODE_FIX, 16, seed=0, env_kwargs={"render_mode": None})
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=32,
        batch_size=256,
        n_epochs=8,
        learning_rate=3e-3,
        gamma=0.0,
        ent_coef=0.01,
        policy_kwargs={"features_extractor_class": BagOfTokens, "net_arch": [64]},
        seed=0,
        device="cpu",
    )
    model.learn(40_000)

    assert returns(model, CODE_FIX, 500).mean() > 0.9


def self_play(hands_at_once: int) -> Any:
    """Kuhn poker as a vector environment whose rows are the players of ``hands_at_once`` tables."""
    game = supersuit.pettingzoo_env_to_vec_env_v1(pettingzoo.make("parallel", KUHN_POKER))
    env = supersuit.concat_vec_envs_v1(game, hands_at_once, num_cpus=1, base_class="stable_baselines3")
    env.venv.reset(seed=0)
    return env


def betting_chances(model: PPO) -> dict[str, float]:
    """The policy as the exact solver of the game wants it."""
    situations = [(card, history) for history in kuhn_value.HISTORIES for card in range(len(kuhn_value.CARDS))]
    seen = torch.as_tensor(np.stack([observation(card, history) for card, history in situations]))
    with torch.no_grad():
        bets = model.policy.get_distribution(seen).distribution.probs[:, 1]
    names = [kuhn_value.information_set(card, history) for card, history in situations]
    return dict(zip(names, bets.tolist(), strict=True))


def winnings(act: Callable[[NDArray[np.float32]], int], hands: int) -> float:
    """What ``act`` wins a hand against random moves, in both seats in turn."""
    env, rng, won = pettingzoo.make("aec", KUHN_POKER), np.random.default_rng(0), 0.0
    for hand in range(hands):
        env.reset(seed=HELD_OUT + hand)
        hero = env.possible_agents[hand % 2]
        for player in env.agent_iter():
            seen, reward, terminated, truncated, _ = env.last()
            won += reward if player == hero else 0.0
            over = terminated or truncated
            env.step(None if over else act(seen) if player == hero else int(rng.integers(2)))
    return won / hands


def test_the_tables_of_supersuit_deal_different_hands() -> None:
    env = self_play(8)
    observations = env.reset().reshape(8, 2, -1)

    assert len({hand.tobytes() for hand in observations}) > 1
    assert (observations[:, 0, :3] != observations[:, 1, :3]).any(axis=1).all()  # nobody holds the same card


def test_self_play_through_supersuit_becomes_good_at_kuhn_poker() -> None:
    set_random_seed(0)
    model = PPO(
        "MlpPolicy",
        self_play(8),
        n_steps=128,
        batch_size=256,
        learning_rate=3e-3,
        gamma=1.0,
        ent_coef=0.01,
        device="cpu",
    )
    exploitable = kuhn_value.nash_conv(betting_chances(model))

    model.learn(20_000)

    assert kuhn_value.nash_conv(betting_chances(model)) < exploitable / 2
    assert winnings(lambda seen: int(model.predict(seen)[0]), 1_000) > 0.2
