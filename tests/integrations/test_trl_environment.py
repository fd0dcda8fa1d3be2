"""The environment that TRL resets and calls: tools, rewards, and lost episodes, which have none."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym
import pytest

import envweave_gym
from envweave_gym.core.faults import FaultStorm, InvalidAction, InvalidArgument
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.integrations.trl import ToolEnvironment, environment_factory, seed_dataset


class Breaking(gym.Env[Any, Any]):
    """Counts its resets; the action 1 breaks it."""

    observation_space = action_space = gym.spaces.Discrete(2)
    made: list[Breaking] = []

    def __init__(self) -> None:
        self.made.append(self)
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        return 0, {}

    def step(self, action: int) -> Any:
        if action == 1:
            raise RuntimeError("the simulator fell over")
        return 0, 0.5, False, False, {}


@pytest.fixture
def breaking() -> Any:
    Breaking.made.clear()
    envweave_gym.register("local://breaking-tool", factory=Breaking)
    return environment_factory("local://breaking-tool")


def test_the_seed_of_the_row_names_the_episode_and_the_tool_plays_it():
    factory = environment_factory("envweave/GSM8KMCQ-v0", dataset="synthetic")
    rewards = list[Any]()
    for letter in "ABCD":
        environment = factory()
        assert "Answer with one letter" in environment.reset(prompt=[], seed=3)
        environment.act(letter)
        rewards.append(environment.get_reward())
    assert sorted(rewards) == [0.1, 0.1, 0.1, 1.0]
    assert environment.act("A") == "The episode is over."


def test_trl_sees_one_tool_named_after_nothing_but_act():
    environment = environment_factory("envweave/GSM8KMCQ-v0", dataset="synthetic", tool="Choose a letter.")()
    public = [
        name
        for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)
        if not name.startswith("_")
    ]
    assert public == ["act", "get_reward", "reset"]
    assert type(environment).__name__ == "GSM8KMCQv0"
    doc = inspect.getdoc(type(environment).act) or ""
    assert doc.startswith("Choose a letter.")
    assert "Args:\n    action:" in doc


def test_a_call_that_names_no_action_is_an_error_for_the_model_and_the_episode_goes_on():
    environment = environment_factory("envweave/GSM8KMCQ-v0", dataset="synthetic")()
    environment.reset(seed=3)
    for _ in range(20):
        with pytest.raises(InvalidAction, match="no idea"):
            environment.act("no idea")
    assert environment.get_reward() == 0.0
    environment.act("A")
    assert environment.get_reward() > 0.0


def test_a_completion_without_a_call_earns_what_the_factory_says():
    environment = environment_factory("envweave/GSM8KMCQ-v0", dataset="synthetic", no_action_reward=-1.0)()
    environment.reset(seed=0)
    assert environment.get_reward() == -1.0


def test_an_environment_without_messages_explains_its_actions_and_shows_the_last_observation():
    environment = environment_factory("CartPole-v1", max_episode_steps=2)()
    assert environment.reset(seed=0).startswith("The action is one whole number from 0 to 1.\n\n[")
    with pytest.raises(InvalidAction, match="left"):
        environment.act("left")
    assert environment.act("1").startswith("[")
    last = environment.act("1")
    assert last.startswith("[")
    assert last.endswith("]\n\nThe episode is over.")
    assert environment.get_reward() == 2.0


def test_a_result_that_is_none_has_no_reward():
    class Strange(Breaking):
        def step(self, action: int) -> Any:
            return 0, 1.0, "yes", False, {}

    envweave_gym.register("local://strange-tool", factory=Strange)
    environment = environment_factory("local://strange-tool")()
    environment.reset(seed=0)
    assert environment.act("0") == "The episode is over."
    assert environment.get_reward() is None


def test_a_lost_episode_has_no_reward_and_the_next_one_a_new_environment(breaking: Any):
    environment: ToolEnvironment = breaking()
    environment.reset(seed=0)
    environment.act("0")
    assert environment.get_reward() == 0.5
    assert environment.act("1") == "The episode is over."
    assert environment.get_reward() is None
    environment.reset(seed=1)
    assert environment.get_reward() == 0.0
    environment.reset(seed=2)
    used = [one for one in Breaking.made if one.resets]
    assert [one.resets for one in used] == [1, 2]


def test_ten_lost_episodes_in_a_row_end_the_training(breaking: Any):
    environments = [breaking() for _ in range(10)]
    for environment in environments:
        environment.reset(seed=0)
        environment.act("1")
    assert [environment.get_reward() for environment in environments[:9]] == [None] * 9
    with pytest.raises(FaultStorm, match="10 faults in a row"):
        environments[9].get_reward()


def test_games_are_refused():
    with pytest.raises(InvalidArgument, match="several agents"):
        environment_factory("envweave/KuhnPoker-v0")


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 1, "first_seed": -1}])
def test_a_data_set_without_rows_or_with_negative_seeds_is_refused(wrong: dict[str, int]):
    with pytest.raises(InvalidArgument, match=list(wrong)[-1]):
        seed_dataset(**wrong)


class Forgetting(Emitter, gym.Env[str, str]):
    """Writes each text in place of those before it."""

    observation_space = action_space = envweave_gym.Unicode(64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.emit(message("user", "the board at first"))
        return "", {}

    def step(self, action: str) -> Any:
        self.emit(message("user", f"the board after {action}", replace=True))
        return "", 1.0, action == "end", False, {}


def test_a_history_that_begins_anew_is_read_as_a_whole():
    envweave_gym.register("local://forgetting-tool", factory=Forgetting)
    environment = environment_factory("local://forgetting-tool")()
    assert "the board at first" in environment.reset(seed=0)
    assert [environment.act(move) for move in ("a", "b", "end")] == [
        "the board after a",
        "the board after b",
        "the board after end\n\nThe episode is over.",
    ]
