"""Typed environments under the names and the stream of this package: replies of models, faults, messages."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.utils.env_checker import data_equivalence
from typed_envs import Guess, GuessNumber, Hint, Place, Walk, make_guess

import envweave_gym
from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.protocols import state_of
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.episode.message import messages_of
from envweave_gym.typed import TypedEnv

# Replies of models


def test_a_reply_is_json_of_the_action_model() -> None:
    env = TypedEnv(GuessNumber())
    assert parse_action(env, '{"number": 5}') == {"number": 5, "note": ""}
    assert parse_action(env, '{"number": 7, "note": "☃", "thought": "hm"}') == {"number": 7, "note": "☃"}
    for junk in (
        "",
        "5",
        "{",
        '{"number": 101}',
        '{"number": "5"}',
        '{"number": 5, "note": null}',
        "[" * 5000,
        None,
    ):
        with pytest.raises(InvalidAction):
            parse_action(env, junk)


def test_a_class_may_read_replies_itself() -> None:
    env = gym.wrappers.TimeLimit(TypedEnv(Walk()), 5)
    assert parse_action(env, "I go right") == {"to": 1}
    with pytest.raises(InvalidAction, match="'hm' is not a Move: say left or right"):
        parse_action(env, "hm")


def test_replies_reach_arrays_and_choices() -> None:
    env = TypedEnv(Bare())
    assert data_equivalence(
        parse_action(env, '{"grid": [1, 255], "word": "b"}'),
        {"grid": np.array([1, 255], np.uint8), "word": np.int64(1)},
    )
    for junk in (
        '{"grid": [1, 256], "word": "b"}',
        '{"grid": [1], "word": "b"}',
        '{"grid": [1, 2], "word": "c"}',
    ):
        with pytest.raises(InvalidAction):
            parse_action(env, junk)


@dataclass
class Rich:
    grid: Annotated[np.ndarray, Box(0, 255, (2,), np.uint8)]
    word: Literal["a", "b"]


class Bare:
    def reset(self) -> Place:
        return Place(0, np.zeros(2, np.float32))

    def step(self, action: Rich) -> Place:
        return Place(1, np.zeros(2, np.float32))


# In the house


def test_a_local_name_gives_the_whole_stack() -> None:
    envweave_gym.register("local://guess", factory=make_guess)
    env = envweave_gym.make("local://guess", limit=9, max_steps=3)
    observation, _ = env.reset(seed=4)
    assert observation["text"] == "guess!"
    env.step({"number": 100, "note": ""})
    state = state_of(env)
    assert (state["episode"], state["step_count"], state["tries"]) == (0, 1, 1)
    assert state["episode_id"].startswith("00000000-")
    with pytest.raises(InvalidAction):
        env.step({"number": 101, "note": ""})
    env.step({"number": 100, "note": ""})
    assert env.step({"number": 100, "note": ""})[3]


def test_events_of_the_class_are_in_the_stream() -> None:
    envweave_gym.register("local://walk", factory=functools.partial(TypedEnv, Walk))
    env = envweave_gym.make("local://walk")
    _, info = env.reset(seed=0, options={"at": 2})
    assert [said["content"] for said in messages_of(info)] == ["you are at 2"]


def test_a_crash_of_the_class_is_a_fault_where_asked_for() -> None:
    class Crashing(GuessNumber):
        def step(self, action: Guess) -> Hint:
            return Hint("x" * 5000, 0)

    envweave_gym.register("local://crash", factory=lambda: TypedEnv(Crashing()))
    env = envweave_gym.make("local://crash", on_fault="truncate")
    env.reset(seed=0)
    *_, reward, terminated, truncated, info = env.step({"number": 1, "note": ""})
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "Hint.text" in info["fault"].message


def test_gymnasium_makes_it_by_a_string() -> None:
    gym.register("typedtests/Guess-v0", entry_point="typed_envs:make_guess", kwargs={"limit": 5})
    try:
        env = gym.make("typedtests/Guess-v0", max_episode_steps=2)
        assert env.unwrapped.core.limit == 5
        env.reset(seed=0)
        env.step({"number": 99, "note": ""})
        assert env.step({"number": 99, "note": ""})[3]
    finally:
        del gym.registry["typedtests/Guess-v0"]
