"""Environments of the private server go to other processes, which have private servers of their own."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, VectorEnv

import envweave_gym as ew
from envweave_gym.providers.subprocess import private_server
from envweave_gym.remote.address import Address
from envweave_gym.testing.traces import player_of, same

LINE, KUHN = "envweave/LineWorld-v0", "envweave/KuhnPoker-v0"
MAKERS: dict[str, Callable[[], Any]] = {
    "single": partial(ew.make, LINE, backend="subprocess", length=50),
    "vector": partial(ew.make, LINE, backend="subprocess", length=50, num_envs=2),
    "rounds": partial(ew.make, KUHN, backend="subprocess"),
    "turns": partial(ew.make, KUHN, backend="subprocess", api="aec"),
}


def test_a_spawned_process_plays_an_environment_that_was_made_before_it():
    env, here = ew.make(LINE, backend="subprocess"), ew.make(LINE, num_envs=2, vectorization_mode="sync")
    expected = here.reset(seed=3)[0], here.step(np.array([1, 0]))[0]
    workers = AsyncVectorEnv([lambda: env] * 2, context="spawn")
    try:
        played = workers.reset(seed=3)[0], workers.step(np.array([1, 0]))[0]
    finally:
        workers.close()
    for there, one in zip(played, expected, strict=True):
        np.testing.assert_array_equal(there, one)


@pytest.mark.parametrize("kind", MAKERS)
def test_neither_pickles_nor_texts_hold_the_token_or_the_port(kind: str):
    env = MAKERS[kind]()
    url = private_server().url
    token = Address(url).headers()["Authorization"].removeprefix("Bearer ")
    for written in (pickle.dumps(env), cloudpickle.dumps(env), repr(env).encode(), str(env).encode()):
        assert token.encode() not in written
    assert url.encode() not in pickle.dumps(env)


@pytest.mark.parametrize("kind", MAKERS)
def test_an_unpickled_environment_plays_like_one_of_this_process(kind: str):
    env = pickle.loads(pickle.dumps(MAKERS[kind]()))
    reported = [trace(env), trace(MAKERS[kind](backend="inproc"))]
    assert same(*reported), reported
    env.close()


def trace(env: Any) -> list[Any]:
    """What an environment says at a reset and a few moves."""
    if isinstance(env, VectorEnv):
        return [env.reset(seed=1), *(env.step(np.array([1, 0])) for _ in range(3))]
    player = player_of(env)
    return [player.reset(1), *(player.move() for _ in range(2))]
