"""Layers and state, found under any wrappers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec, turn_based_aec_to_parallel
from plain_envs import Compass, Duel, Steps, Turns, wrapped
from text_envs import RepeatEnv

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.protocols import HasEpisodeState, ParsesActions, layers, state_of
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.wrappers import AECStream, ParallelStream, RequestStream


def test_layers_go_down_to_the_unwrapped_environment_and_no_further() -> None:
    core = Steps(Discrete(2))
    core.env = "an attribute of its own"
    names = [type(layer).__name__ for layer in layers(wrapped(core))]
    assert names == ["RecordEpisodeStatistics", "TimeLimit", "OrderEnforcing", "Steps"]


def test_layers_go_through_the_conversions_of_pettingzoo() -> None:
    for env, core in (
        (parallel_to_aec(Duel()), Duel),
        (aec_to_parallel(BaseWrapper(Turns())), Turns),
        (turn_based_aec_to_parallel(Turns()), Turns),
        (BaseParallelWrapper(ParallelStream(Duel())), Duel),
    ):
        assert type(list(layers(env))[-1]) is core


def test_state_counts_episodes_and_steps_under_wrappers() -> None:
    env = wrapped(RequestStream(Steps(Discrete(2))))
    assert state_of(env) == {"episode": -1, "step_count": 0, "own": "field"}
    env.reset(seed=0)
    env.reset(seed=0)
    env.step(1)
    assert state_of(env) == {"episode": 1, "step_count": 1, "own": "field"}
    assert state_of(env.env.env) == state_of(env)


def test_state_of_games() -> None:
    parallel = BaseParallelWrapper(ParallelStream(Duel()))
    parallel.reset(seed=0)
    parallel.step({"number_0": 1, "word_1": "x"})
    assert state_of(parallel) == {"episode": 0, "step_count": 1, "own": "field"}
    turns = BaseWrapper(AECStream(Turns()))
    turns.reset(seed=0)
    turns.step(1)
    turns.step(0)
    assert state_of(turns) == {"episode": 0, "step_count": 2}


def test_state_of_what_counts_nothing_says_what_to_do() -> None:
    with pytest.raises(
        InvalidArgument, match=r"make it with envweave_gym.make, or wrap it in .*RequestStream"
    ):
        state_of(wrapped(Steps(Discrete(2))))
    with pytest.raises(InvalidArgument, match=r"each of its environments in .*RequestStream"):
        state_of(SyncVectorEnv([Compass]))


LINE = "envweave/LineWorld-v0"


@pytest.mark.parametrize("form", [None, "sync", "async"])
def test_state_of_a_vector_is_one_for_each_row(form: Any) -> None:
    envs = gym.wrappers.vector.RecordEpisodeStatistics(
        gym.make_vec(LINE, num_envs=2, vectorization_mode=form)
    )
    twin = gym.make(LINE)
    try:
        envs.reset(seed=3)
        twin.reset(seed=4)
        envs.step(np.array([0, 1]))
        twin.step(1)
        states = state_of(envs)
        assert isinstance(states, tuple)
        assert [(state["episode"], state["step_count"]) for state in states] == [(0, 1)] * 2
        assert states[1] == state_of(twin)
    finally:
        envs.close()


def test_an_asynchronous_vector_without_streams_survives_the_question() -> None:
    envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")])
    try:
        envs.reset(seed=0)
        with pytest.raises(InvalidArgument, match="wrap each of its environments"):
            state_of(envs)
        assert envs.step(np.array([0]))[1].tolist() == [1.0]
    finally:
        envs.close()


def test_the_protocols_are_recognised() -> None:
    assert isinstance(Compass(), HasEpisodeState)
    assert isinstance(Compass(), ParsesActions)
    assert not isinstance(RepeatEnv(), HasEpisodeState)
    assert not isinstance(RepeatEnv(), ParsesActions)


@pytest.mark.parametrize("nothing", [None, 3, "envweave/Echo-v0", []])
def test_a_value_that_is_no_environment_is_refused(nothing: Any) -> None:
    for question in (state_of, lambda env: parse_action(env, "1")):
        with pytest.raises(InvalidArgument, match="that is no environment of Gymnasium or PettingZoo"):
            question(nothing)
