"""Plays a PettingZoo environment whose agents act in turn, in scripts of the atlas."""

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
    return importlib.import_module("pettingzoo").make("aec", ID, **kwargs)


def after(seed: Any, trace: list[Any]) -> Any:
    """Return the seed of the episode after this trace; ``None`` without a seed."""
    return None if seed is None else seed + len(trace)


def play(env: Any, seed: Any, moves: int, keep: Any = copy.deepcopy, before_each: Any = None) -> list[Any]:
    """Return a copy of what each agent observed before its move; a finished episode is followed by another seed's."""
    spaces: dict[str, Any] = {}

    def choose(agent: str, observation: Any, info: Any) -> Any:
        if agent not in spaces:
            spaces[agent] = copy.deepcopy(env.action_space(agent))
            spaces[agent].seed(zlib.crc32(agent.encode()))
        masked = observation if isinstance(observation, dict) else info
        mask = masked.get("action_mask")
        return spaces[agent].sample() if mask is None else spaces[agent].sample(mask)

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
        env.step(None if terminated or truncated else choose(agent, observation, info))
    return trace


def parts(result: Any) -> tuple[Any, ...]:
    """Return the parts of one agent's turn, in the order of PARTS."""
    return result


def spaces_of(env: Any, observation: Any) -> list[Any]:
    """Return the observation of the agent whose turn it was, with its space."""
    return [(env.observation_space(agent), one) for agent, one in observation.items()]


def each(value: Any) -> list[Any]:
    """Return the value of the agent whose turn it was."""
    return [] if value is None else list(value.values())


def checker(env: Any) -> None:
    """Run PettingZoo's own test."""
    from pettingzoo.test import api_test

    api_test(env, num_cycles=50)
