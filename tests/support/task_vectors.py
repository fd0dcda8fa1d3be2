"""Vectors over the numbered tasks, in every form and place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import pytest
from task_worlds import NUMBERED

import envweave_gym as ew
from envweave_gym.remote.vector import RemoteVectorEnv

LINE = "envweave/LineWorld-v0"
Make = Callable[..., Any]


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a vector of the form that the test names, and closes it."""
    made: list[Any] = []

    def build(form: str, rows: int = 3, *, task: str = NUMBERED, **kwargs: Any) -> Any:
        if form == "native":
            env = ew.make(LINE, num_envs=rows, max_steps=4, slip=0.0, **kwargs)
        elif form == "servers":
            server = request.getfixturevalue("url")
            env = RemoteVectorEnv(task, [server] * 3, num_envs=rows, **kwargs)
        elif form == "registry":
            env = gym.make_vec(LINE, num_envs=rows, max_steps=4, slip=0.0, **kwargs)
        else:
            how = {"vectorization_mode": form} if form in ("sync", "async") else {}
            how |= {"backend": "subprocess"} if form == "subprocess" else {}
            env = ew.make(task, num_envs=rows, **how, **kwargs)
        made.append(env)
        return env

    yield build
    for env in made:
        env.close()
