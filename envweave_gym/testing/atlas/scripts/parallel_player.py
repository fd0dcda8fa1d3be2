"""Plays a parallel PettingZoo environment in scripts of the atlas."""

from __future__ import annotations

import copy
import importlib
import zlib
from typing import Any

ID: Any = ""
KWARGS: Any = {}
PARTS = ("observation", "reward", "termination", "truncation", "info")


def make(**kwargs: Any) -> Any:
    """Make the environment: of a registered ID, or with the function of a module."""
    module, function, _ = (ID + "::").split(":", 2)
    kwargs = {**KWARGS, **kwargs}
    if function:
        return getattr(importlib.import_module(module), function)(**kwargs)
    return importlib.import_module("pettingzoo").make("parallel", ID, **kwargs)


def after(seed: Any, trace: list[Any]) -> Any:
    """Return the seed of the episode after this trace; ``None`` without a seed."""
    return None if seed is None else seed + len(trace)


def play(env: Any, seed: Any, moves: int, keep: Any = copy.deepcopy, before_each: Any = None) -> list[Any]:
    """Return a copy of what reset and each round returned; a finished episode is followed by another seed's."""
    spaces: dict[str, Any] = {}

    def choose(agent: str) -> Any:
        if agent not in spaces:
            spaces[agent] = copy.deepcopy(env.action_space(agent))
            spaces[agent].seed(zlib.crc32(agent.encode()))
        observation, info = last[0].get(agent), last[-1].get(agent, {})
        masked = observation if isinstance(observation, dict) else info
        mask = masked.get("action_mask")
        return spaces[agent].sample() if mask is None else spaces[agent].sample(mask)

    last = env.reset(seed=seed)
    trace = [keep(last)]
    for _ in range(moves):
        if before_each is not None:
            before_each(env)
        if env.agents:
            last = env.step({agent: choose(agent) for agent in env.agents})
        else:
            last = env.reset(seed=after(seed, trace))
        trace.append(keep(last))
    return trace


def parts(result: Any) -> tuple[Any, ...]:
    """Return the parts of what reset or step returned, in the order of PARTS; ``None`` for those that reset lacks."""
    assert isinstance(result, tuple), f"reset or step returned {type(result)}, not a tuple"
    assert len(result) in (2, 5), f"reset or step returned {len(result)} values, not 2 or 5"
    return result if len(result) == 5 else (result[0], None, None, None, result[1])


def spaces_of(env: Any, observation: Any) -> list[Any]:
    """Return each agent's observation with its space."""
    return [(env.observation_space(agent), one) for agent, one in observation.items()]


def each(value: Any) -> list[Any]:
    """Return the values of all agents."""
    return [] if value is None else list(value.values())


def checker(env: Any) -> None:
    """Run PettingZoo's own test."""
    from pettingzoo.test import parallel_api_test

    parallel_api_test(env, num_cycles=50)
