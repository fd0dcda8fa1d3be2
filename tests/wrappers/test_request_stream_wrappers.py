"""RequestStream among other wrappers, and in the specs of environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import (
    NormalizeReward,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TransformAction,
    TransformObservation,
)
from scripted_envs import Scripted
from scripted_streams import Malformed, scripted

from envweave_gym import EventKind, InvalidAction, state_of, stream_of
from envweave_gym.wrappers import RequestStream


def test_third_party_wrappers_work_inside_and_outside() -> None:
    def stacked(stream_inside: bool) -> Any:
        env: Any = Scripted([1.0] * 9)
        env = RequestStream(env) if stream_inside else env
        env = TransformAction(env, lambda action: action - 5, Discrete(3, start=5))
        env = TransformObservation(env, lambda taken: 10 * taken, Discrete(10000))
        env = NormalizeReward(RecordEpisodeStatistics(env))
        return env if stream_inside else RequestStream(env)

    for inside in (True, False):
        env = stacked(inside)
        env.reset(seed=0)
        observation, _, _, _, info = env.step(6)
        assert observation == 10
        acted = stream_of(info).of_kind(EventKind.ACT)[0]
        assert acted.data["action"] == (1 if inside else 6)
        with pytest.raises(InvalidAction):
            env.step(2)


def test_actions_of_nested_spaces_are_recorded_as_json() -> None:
    class Nested(Scripted):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict(move=Box(-1, 1, (2,), np.float32), kind=Discrete(2))

    env = RequestStream(Nested())
    env.reset(seed=0)
    *_, info = env.step({"move": np.array([0.5, -1], np.float32), "kind": np.int64(1)})
    assert stream_of(info).events[0].data == {"action": {"move": [0.5, -1.0], "kind": 1}}


def test_a_stream_put_on_by_hand_is_in_the_spec() -> None:
    env = RequestStream(gym.make("CartPole-v1"), max_steps=3, on_fault="truncate")
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert isinstance(again, RequestStream)
    assert again.name == "CartPole-v1"
    again.reset(seed=0)
    assert [again.step(0)[3] for _ in range(3)] == [False, False, True]


def test_the_stream_of_an_id_is_not_in_its_spec() -> None:
    env = gym.make("envweave/Counter-v0", max_steps=3)
    assert env.spec.additional_wrappers == ()
    assert gym.make(env.spec.to_json() and EnvSpec.from_json(env.spec.to_json())).spec == env.spec


def test_the_checker_checks_once_and_is_stepped_around() -> None:
    class Shifty(Scripted):
        def step(self, action: int) -> Any:
            observation, *rest = super().step(action)
            return (observation + 0.5 if self.taken > 1 else observation), *rest

    env = RequestStream(PassiveEnvChecker(Shifty()))
    for _ in range(2):
        env.reset(seed=0)
        assert [env.step(0)[0] for _ in range(3)] == [1, 2.5, 3.5]
    wrong = RequestStream(PassiveEnvChecker(Malformed((0, 0.0, False, False, None))))
    wrong.reset(seed=0)
    with pytest.raises(TypeError, match=r"^Malformed: .* `info` returned by `step\(\)`"):
        wrong.step(0)


def test_state_counts_episodes_and_steps_and_shows_own_fields() -> None:
    env = RecordEpisodeStatistics(scripted())
    assert state_of(env) == {"episode": -1, "step_count": 0, "taken": 0}
    env.reset(seed=0)
    env.step(0)
    env.reset()
    env.step(0)
    env.step(0)
    assert state_of(env) == {"episode": 1, "step_count": 2, "taken": 2}
    assert env.env.state() == state_of(env)
