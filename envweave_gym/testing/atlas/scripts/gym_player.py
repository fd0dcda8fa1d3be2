"""Plays a Gymnasium environment in scripts of the atlas."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym

from envweave_gym.testing.atlas.scripts.shared import after

ID: Any = ""
KWARGS: Any = {}
PARTS = ("observation", "reward", "terminated", "truncated", "info")
"""Names of the parts of a step's result, for messages."""


def make(**kwargs: Any) -> Any:
    """Make the environment."""
    return gym.make(ID, **{**KWARGS, **kwargs})


def play(env: Any, seed: Any, moves: int, keep: Any = copy.deepcopy, before_each: Any = None) -> list[Any]:
    """Return a copy of what reset and each move returned; a finished episode is followed by another seed's."""
    actions = copy.deepcopy(env.action_space)
    actions.seed(0)
    last = env.reset(seed=seed)
    trace = [keep(last)]
    for _ in range(moves):
        if before_each is not None:
            before_each(env)
        over = len(last) == 5 and (last[2] or last[3])
        last = env.reset(seed=after(seed, trace)) if over else env.step(actions.sample())
        trace.append(keep(last))
    return trace


def spaces_of(env: Any, observation: Any) -> list[Any]:
    """Return each observation with its space."""
    return [(env.observation_space, observation)]


def each(value: Any) -> list[Any]:
    """Return the values of all agents: here that of the only one."""
    return [] if value is None else [value]


def checker(env: Any) -> None:
    """Run Gymnasium's own checker."""
    from gymnasium.utils.env_checker import check_env

    check_env(env.unwrapped, skip_render_check=True)
