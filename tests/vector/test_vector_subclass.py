"""A native vector environment of one's own: what a subclass says, and what becomes of options."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from native_vectors import FIX, LINE, native, sync
from offset_vector import Offset

from envweave_gym import EventKind, InvalidAction, InvalidArgument, ResetNeeded, stream_of


def test_choices_that_do_not_start_at_zero_are_recorded_as_chosen() -> None:
    env = Offset(3, autoreset_mode="SameStep")
    _, infos = env.reset(seed=5)
    assert [event.kind for event in infos["stream"][1].events] == ["episode_start", "message", "message"]
    assert infos["stream"][1].events[2].data["content"] == "6"
    assert infos["seq"].tolist() == [2, 2, 2]
    for given in (np.array([-10, 0, 10], np.int8), [-10, 0, 10]):
        _, rewards, terminated, _, infos = env.step(given)
        assert rewards.tolist() == [-10, 0, 10]
        assert terminated.tolist() == [False, False, True]
    acted = [stream.of_kind(EventKind.ACT)[0].data["action"] for stream in stream_of(infos)]
    assert acted == [-10, 0, 10]
    for bad in ([-11, 0, 0], [0, 0, 11]):
        with pytest.raises(
            InvalidAction, match=r"^Offset: action -?11 of row \d is not in Discrete\(21, start=-10\)"
        ):
            env.step(bad)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("reward", [math.nan, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error_that_names_its_row(
    mode: AutoresetMode, reward: float
) -> None:
    class Broken(Offset):
        def advance(self, actions: Any) -> Any:
            rewards, terminated = super().advance(actions)
            return np.where(rewards == 7, reward, 1e200), terminated

    env = Broken(3, autoreset_mode=mode)
    env.reset(seed=0)
    assert env.step([0, 1, 2])[1].tolist() == [1e200] * 3, "large, and finite"
    with pytest.raises(ValueError, match=rf"^Broken: the reward {reward} of row 1 is no finite number; "):
        env.step([0, 7, 7])
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.step([0, 0, 0])
    env.reset(seed=0)
    env.step([0, 0, 0])


def test_a_reward_of_a_row_that_is_reset_is_dropped_and_may_be_anything() -> None:
    class Broken(Offset):
        def advance(self, actions: Any) -> Any:
            over = self.seen == 1
            return np.where(over, math.nan, 1.0), ~over

    env = Broken(2)
    env.reset(seed=0)
    assert env.step([0, 0])[2].tolist() == [True, True]
    assert env.step([0, 0])[1].tolist() == [0.0, 0.0]


def test_options_reach_the_rows_that_are_reset_and_no_later_episode() -> None:
    env = Offset(3)
    assert env.reset(seed=0, options={"seen": 7})[0].tolist() == [7, 7, 7]
    env.step([0, 10, 0])
    observations, *_, infos = env.step([0, 0, 0])
    assert observations.tolist() == [9, 0, 9]
    assert infos["stream"][1].events[0].kind == EventKind.EPISODE_START
    mask = np.array([True, False, False])
    assert env.reset(options={"reset_mask": mask, "seen": 3})[0].tolist() == [3, 0, 9]


def test_a_refused_option_leaves_the_episodes_as_they_are() -> None:
    env = Offset(2)
    env.reset(seed=0)
    env.step([0, 0])
    before = env.state()
    with pytest.raises(InvalidArgument, match=r"'index'.* are unknown"):
        env.reset(options={"index": 3})
    assert env.state() == before
    assert env.step([0, 0])[0].tolist() == [2, 2]


@pytest.mark.parametrize("env_id", [LINE, FIX])
def test_unknown_options_are_refused_as_the_single_environments_refuse_them(env_id: str) -> None:
    for env in (native(env_id), sync(env_id), gym.make(env_id)):
        with pytest.raises(InvalidArgument, match=f"{env_id}: reset takes no option 'index'"):
            env.reset(seed=3, options={"index": 3})
        env.reset(seed=3, options={})


def test_a_plain_subclass_has_no_state_of_its_own() -> None:
    env = Offset(1)
    env.reset(seed=0)
    assert env.state() == ({"episode": 0, "step_count": 0},)
