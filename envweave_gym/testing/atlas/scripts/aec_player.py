"""Plays a PettingZoo environment whose agents act in turn, in scripts of the atlas."""

from __future__ import annotations

import copy
from typing import Any

from envweave_gym.testing.atlas.scripts.games import sampled
from envweave_gym.testing.atlas.scripts.shared import after

API = "aec"


def play(env: Any, seed: Any, moves: int, keep: Any = copy.deepcopy, before_each: Any = None) -> list[Any]:
    """Return a copy of what each agent observed before its move; a finished episode is followed by another seed's."""
    spaces: dict[str, Any] = {}
    env.reset(seed=seed)
    trace: list[Any] = []
    for _ in range(moves + 1):
        if not env.agents:
            env.reset(seed=after(seed, trace))
        if before_each is not None:
            before_each(env)
        agent = env.agent_selection
        observation, reward, terminated, truncated, info = env.last()
        trace.append(
            keep(({agent: observation}, {agent: reward}, {agent: terminated}, {agent: truncated}, info))
        )
        over = terminated or truncated
        env.step(None if over else sampled(spaces, env, agent, observation, info))
    return trace


def parts(result: Any) -> tuple[Any, ...]:
    """Return the parts of one agent's turn, in the order of PARTS."""
    return result


def checker(env: Any) -> None:
    """Run PettingZoo's own test."""
    from pettingzoo.test import api_test

    api_test(env, num_cycles=50)
