"""The wrapper that pays an agent what a reward transform says."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from arithmetic_env import Arithmetic
from gymnasium.vector import SyncVectorEnv

import envweave_gym
from envweave_gym.core.faults import Fault, FaultKind, InvalidAction
from envweave_gym.core.program_result import Result
from envweave_gym.episode.stream import Event, EventKind, Stream
from envweave_gym.episode.trainable import trainable
from envweave_gym.rewards.transforms import (
    CodeSafety,
    Composite,
    RewardFailed,
    RewardTransform,
    Score,
    TaskCompletion,
    math_transform,
)
from envweave_gym.wrappers import NumericInfo


def test_the_wrapper_pays_what_the_transform_says() -> None:
    env = RewardTransform(Arithmetic(), math_transform(42))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("21 * 2")
    assert (observation, reward, terminated, truncated) == ("42", 1.1, False, False)
    assert info["env_reward"] == 0.25
    assert info["reward_parts"] == {"earned": 1.0, "style": 0.1}
    assert info["result"] == Result(value=42)
    _, reward, _, _, info = env.step("import os")
    assert reward == -0.9
    assert info["reward_parts"] == {"earned": 0.0, "style": 0.1, "penalty": -1.0}
    assert type(reward) is float


def test_the_transform_can_be_replaced_and_may_read_the_environments_reward() -> None:
    env = RewardTransform(Arithmetic(), math_transform(42))
    env.reset(seed=0)
    env.transform = Composite(lambda action, observation, info: 2 * info["env_reward"], CodeSafety())
    assert env.step("1 + 1")[1] == 0.5
    assert env.step("import os")[1] == -1.0


def test_an_outer_wrapper_does_not_overwrite_a_violation() -> None:
    env = RewardTransform(RewardTransform(Arithmetic(), CodeSafety()), TaskCompletion())
    env.reset(seed=0)
    assert env.step("1 + 1")[1] == 1.0
    assert env.step("import os")[1] == -1.0


def test_lost_steps_and_reset_rows_are_not_judged() -> None:
    core = Arithmetic(own_reward=0.0)
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    core.extra = {"fault": Fault(FaultKind.CRASH, "gone", retryable=True)}
    *_, info = env.step("import os")
    assert "reward_parts" not in info
    assert env.step("import os")[1] == 0.0
    core.extra = {"stream": Stream((), (Event(0, EventKind.EPISODE_START),))}
    assert env.step("21 * 2")[1] == 0.0
    core.extra = {"stream": Stream((), (Event(1, EventKind.ACT, "agent"),))}
    assert env.step("21 * 2")[1] == 1.1


@pytest.mark.parametrize("bare", [NumericInfo, lambda env: env])
def test_reset_rows_are_not_paid_for_whatever_is_left_of_the_info(bare: Any) -> None:
    env = RewardTransform(
        bare(envweave_gym.make("envweave/Echo-v0", autoreset=True, max_steps=1)), always_one
    )
    env.reset(seed=0)
    assert [env.step("x")[1] for _ in range(4)] == [1.0, 0.0, 1.0, 0.0]


def always_one(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return 1.0


@pytest.mark.parametrize("foreign", [{"fault": "a line on the map"}, {"fault": None}, {"stream": "a river"}])
def test_keys_fault_and_stream_of_a_foreign_environment_are_its_own(foreign: dict[str, Any]) -> None:
    core = Arithmetic()
    env = RewardTransform(core, always_one)
    env.reset(seed=0)
    core.extra = foreign
    assert env.step("1 + 1")[1] == 1.0


def test_an_action_that_is_no_text_is_refused_and_the_episode_goes_on() -> None:
    core = Arithmetic()
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="Arithmetic: a reward transform judges text, not 42; send a str"):
        env.step(42)  # pyright: ignore[reportArgumentType]
    assert core.steps == 0
    assert env.step("21 * 2")[1] == 1.1


def nothing(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
    return None


def infinite(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
    return float("inf")


def broken(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
    raise KeyError("answer")


def refusing(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
    raise InvalidAction("this is not for the environment")


@pytest.mark.parametrize(
    ("transform", "complaint"),
    [
        (nothing, "the reward function nothing gave None, which is no finite number"),
        (infinite, "the reward function infinite gave inf, which is no finite number"),
        (broken, "the reward function broken raised KeyError: 'answer'"),
        (refusing, "the reward function refusing raised InvalidAction: this is not for the environment"),
    ],
)
def test_a_transform_that_fails_pays_nothing_but_says_so(transform: Any, complaint: str) -> None:
    core = Arithmetic()
    env = RewardTransform(core, Composite(CodeSafety(), transform))
    env.reset(seed=0)
    with pytest.raises(RewardFailed, match=rf"^Arithmetic: {complaint}; the step is done "):
        env.step("1 + 1")
    assert core.steps == 1
    env.transform = math_transform(42)
    assert env.step("21 * 2")[1] == 1.1


def test_scores_whose_sum_is_beyond_all_numbers_are_no_reward() -> None:
    def lowest(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
        return Score(style=-1.7e308)

    core = Arithmetic()
    core.extra = {"reward_parts": {"penalty": -1.7e308}}
    env = RewardTransform(core, lowest)
    env.reset(seed=0)
    with pytest.raises(RewardFailed, match=r"^Arithmetic: Score: its parts add up to -inf, beyond"):
        env.step("1 + 1")


def test_a_failure_of_the_transform_names_the_id() -> None:
    for env_id in ("envweave/Echo-v0", "local://judged"):
        envweave_gym.register("local://judged", factory=lambda: Arithmetic())
        env = RewardTransform(envweave_gym.make(env_id), broken)
        env.reset(seed=0)
        with pytest.raises(RewardFailed, match=f"^{env_id}: the reward function broken raised KeyError"):
            env.step("1")
        with pytest.raises(InvalidAction, match=f"^{env_id}: a reward transform judges text"):
            env.step(1)


def test_inside_the_stream_a_transform_that_fails_is_a_fault_and_not_a_refusal() -> None:
    envweave_gym.register("local://refusing", factory=lambda: RewardTransform(Arithmetic(), refusing))
    env = envweave_gym.make("local://refusing", on_fault="truncate")
    env.reset(seed=0)
    _, reward, _, truncated, info = env.step("1")
    assert (reward, truncated, trainable(info)) == (0.0, True, False)
    assert "the reward function refusing raised InvalidAction" in info["fault"].message


@pytest.mark.parametrize("parts", [{"penalty": "grave"}, {"penalty": float("nan")}, {"penalty": 1.0}, 7])
def test_reward_parts_of_a_foreign_environment_are_no_violation(parts: Any) -> None:
    core = Arithmetic()
    env = RewardTransform(core, always_one)
    env.reset(seed=0)
    core.extra = {"reward_parts": parts}
    assert env.step("1 + 1")[1] == 1.0


def test_the_wrapped_environment_pickles_and_copies_in_mid_episode() -> None:
    core = Arithmetic()
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    env.step("1 + 1")
    for again in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert isinstance(again.env, Arithmetic)
        assert again.env.steps == 1
        assert again.step("21 * 2")[1] == 1.1
    assert core.steps == 1


def test_vector_environments_gather_the_parts() -> None:
    def make(expected: int) -> RewardTransform[str]:
        return RewardTransform(Arithmetic(), math_transform(expected))

    envs = SyncVectorEnv([lambda: make(42), lambda: make(8)])
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(("21 * 2", "import os"))
    assert rewards.tolist() == [1.1, -0.9]
    assert [result.value for result in infos["result"]] == [42, None]
    assert infos["reward_parts"]["earned"].tolist() == [1.0, 0.0]
    assert infos["reward_parts"]["_penalty"].tolist() == [False, True]
    envs.close()
