"""Stable-Baselines3 and SuperSuit take our IDs as they are: the examples of docs/trainers.md learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed: run make trainers")
pytest.importorskip("supersuit", reason="SuperSuit is not installed: run make trainers")

import torch
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

import envweave_gym  # noqa: F401 - registers the IDs
from envweave_gym.envs.games import kuhn_rules
from envweave_gym.envs.games.kuhn_poker import observation

pytestmark = pytest.mark.trainers

LINE_WORLD, CODE_FIX, KUHN_POKER = "envweave/LineWorld-v0", "envweave/CodeFix-v0", "envweave/KuhnPoker-v0"
HELD_OUT = 1_000_000
Example = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize("env_id", [LINE_WORLD, CODE_FIX])
def test_the_checker_of_stable_baselines_has_nothing_to_say(env_id: str) -> None:
    check_env(gym.make(env_id))


def returns(model: BaseAlgorithm, env_id: str, episodes: int) -> NDArray[np.float64]:
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


def test_ppo_solves_line_world(example: Example) -> None:
    model = example("sb3_line_world")["model"]

    reached = returns(model, LINE_WORLD, 200) > 0

    assert reached.mean() >= 0.95


def test_ppo_fixes_programs_it_has_never_seen(example: Example) -> None:
    model = example("sb3_code_fix")["model"]

    assert returns(model, CODE_FIX, 500).mean() > 0.9


def trajectory(env: VecEnv) -> list[NDArray[Any]]:
    """Observations, rewards and ends of 60 steps."""
    rng, columns = np.random.default_rng(0), [[env.reset()], [], []]
    for _ in range(60):
        for column, now in zip(columns, env.step(rng.integers(2, size=env.num_envs)), strict=False):
            column.append(now)
    env.close()
    return [np.stack(column) for column in columns]


def test_environments_in_other_processes_play_the_same_episodes(example: Example) -> None:
    elsewhere = trajectory(example("sb3_processes")["env"])
    here = trajectory(make_vec_env(LINE_WORLD, 2, seed=3))

    assert here[2].any()
    for mine, theirs in zip(here, elsewhere, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)  # here rewards are kept as float32


def betting_chances(model: BaseAlgorithm) -> dict[str, float]:
    """The policy as the exact solver of the game wants it."""
    cards = range(len(kuhn_rules.CARDS))
    situations = [(card, history) for history in kuhn_rules.HISTORIES for card in cards]
    seen = torch.as_tensor(np.stack([observation(card, history) for card, history in situations]))
    with torch.no_grad():
        bets = model.policy.get_distribution(seen).distribution.probs[:, 1]
    names = [kuhn_rules.information_set(card, history) for card, history in situations]
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


def test_self_play_through_supersuit_becomes_good_at_kuhn_poker(example: Example) -> None:
    trained = example("sb3_kuhn_poker")
    model, tables = trained["model"], trained["env"]
    at_random = dict.fromkeys(kuhn_rules.INFORMATION_SETS, 0.5)

    assert kuhn_rules.nash_conv(betting_chances(model)) < kuhn_rules.nash_conv(at_random) / 2
    assert winnings(lambda seen: int(model.predict(seen)[0]), 1_000) > 0.2

    hands = tables.reset().reshape(8, 2, -1)
    assert len({hand.tobytes() for hand in hands}) > 1  # the tables deal different hands
    assert (hands[:, 0, :3] != hands[:, 1, :3]).any(axis=1).all()  # nobody holds the other's card
