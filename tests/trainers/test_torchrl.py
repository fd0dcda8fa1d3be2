"""TorchRL takes our IDs, games with ``NumericInfo``: the examples of docs/trainers.md learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pettingzoo
import pytest

pytest.importorskip("torchrl.collectors", reason="TorchRL is not installed: run make trainers")

import torch
from gymnasium.spaces import Discrete
from gymnasium.wrappers import TransformAction
from tensordict import NonTensorData
from torchrl.envs import GymWrapper, PettingZooWrapper, check_env_specs

from envweave_gym.wrappers import NumericInfo

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore:PettingZoo in TorchRL is tested using version:UserWarning"),
    pytest.mark.filterwarnings("ignore:The env passed to Collector is missing transforms:FutureWarning"),
]

LINE_WORLD, CODE_FIX, ECHO = "envweave/LineWorld-v0", "envweave/CodeFix-v0", "envweave/Echo-v0"
GAMES = ["envweave/KuhnPoker-v0", "envweave/CodeReview-v0", "envweave/LineRace-v0"]
HELD_OUT = 1_000_000


@pytest.mark.parametrize(
    ("env_id", "kwargs", "kinds"),
    [
        (LINE_WORLD, {}, {"observation": torch.Tensor}),
        (CODE_FIX, {}, {"observation": torch.Tensor}),
        (CODE_FIX, {"observation": "text"}, {"observation": str}),
        (CODE_FIX, {"observation": "both"}, {"tokens": torch.Tensor, "source": str}),
        (ECHO, {}, {"observation": str}),
    ],
)
def test_specs_of_gymnasium_ids(env_id: str, kwargs: dict[str, Any], kinds: dict[str, type]) -> None:
    env = GymWrapper(gym.make(env_id, **kwargs))

    check_env_specs(env)

    steps = env.rollout(3, break_when_any_done=False)
    for key, kind in kinds.items():
        assert isinstance(steps[0]["next"][key], kind)


def test_specs_of_counter_whose_action_is_a_dict_of_one_entry() -> None:
    """TorchRL hands over the entry without its dict, and counts from 0."""
    counter = gym.make("envweave/Counter-v0")
    env = GymWrapper(TransformAction(counter, lambda action: {"delta": int(action) - 10}, Discrete(21)))

    check_env_specs(env)


def test_text_goes_in_and_comes_out() -> None:
    env = GymWrapper(gym.make(ECHO))
    state = env.reset(seed=0)
    assert state["observation"] == "Echo environment ready!"

    state["action"] = NonTensorData("Hello, World!")
    after = env.step(state)["next"]

    assert after["observation"] == "Hello, World!"
    assert after["reward"].item() == pytest.approx(1.3)


@pytest.mark.parametrize("env_id", [LINE_WORLD, CODE_FIX])
def test_specs_of_native_vectors(env_id: str) -> None:
    env = GymWrapper(gym.make_vec(env_id, num_envs=4, autoreset_mode="Disabled"))

    check_env_specs(env)

    steps = env.rollout(60, break_when_any_done=False)
    assert steps.shape == (4, 60)
    assert steps["next", "done"].any()


@pytest.mark.parametrize("env_id", GAMES)
@pytest.mark.parametrize("kind", ["aec", "parallel"])
def test_specs_of_games(kind: str, env_id: str) -> None:
    env = PettingZooWrapper(NumericInfo(pettingzoo.make(kind, env_id)), use_mask=kind == "aec")

    check_env_specs(env)

    steps = env.rollout(400, break_when_any_done=False)
    for group in env.group_map:
        assert {"seq", "active"} <= set(steps["next", group, "info"].keys())
        assert steps["next", group, "done"].any()


def test_games_without_numeric_info_are_refused() -> None:
    with pytest.raises(RuntimeError, match="dtype of Stream"):
        PettingZooWrapper(pettingzoo.make("parallel", GAMES[0]))


def success(logits: torch.nn.Module, episodes: int) -> float:
    """How often the greedy policy reaches the goal on seeds never trained on."""
    env, reached = gym.make(LINE_WORLD), 0
    for episode in range(episodes):
        seen, _ = env.reset(seed=HELD_OUT + episode)
        terminated = truncated = False
        while not (terminated or truncated):
            with torch.no_grad():
                action = int(logits(torch.as_tensor(seen)).argmax())
            seen, _, terminated, truncated, _ = env.step(action)
        reached += terminated
    return reached / episodes


def test_ppo_solves_line_world(example: Callable[[str], dict[str, Any]]) -> None:
    policy = example("torchrl_line_world")["policy"]

    assert success(policy, 200) >= 0.95


def test_a_hand_of_kuhn_poker(example: Callable[[str], dict[str, Any]]) -> None:
    hand = example("torchrl_kuhn_poker")["hand"]

    won = [hand["next", player, "reward"].sum().item() for player in ("player_0", "player_1")]
    assert sorted(map(abs, won)) in ([1.0, 1.0], [2.0, 2.0])
    assert sum(won) == 0.0
    assert hand[-1]["next", "done"].item()
