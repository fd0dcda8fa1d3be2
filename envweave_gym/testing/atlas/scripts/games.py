"""What the players of both kinds of PettingZoo environments have in common, in scripts of the atlas."""

from __future__ import annotations

import copy
import importlib
import zlib
from typing import Any

ID: Any = ""
KWARGS: Any = {}
API: Any = ""
PARTS = ("observation", "reward", "termination", "truncation", "info")


def make(**kwargs: Any) -> Any:
    """Make the environment: of a registered ID, or with the function of a module."""
    module, function, _ = (ID + "::").split(":", 2)
    kwargs = {**KWARGS, **kwargs}
    if function:
        return getattr(importlib.import_module(module), function)(**kwargs)
    return importlib.import_module("pettingzoo").make(API, ID, **kwargs)


def sampled(spaces: Any, env: Any, agent: str, observation: Any, info: Any) -> Any:
    """Return the agent's next action, drawn from a copy of its space in ``spaces``; a mask leaves legal ones."""
    if agent not in spaces:
        spaces[agent] = copy.deepcopy(env.action_space(agent))
        spaces[agent].seed(zlib.crc32(agent.encode()))
    masked = observation if isinstance(observation, dict) else info
    mask = masked.get("action_mask")
    return spaces[agent].sample() if mask is None else spaces[agent].sample(mask)


def spaces_of(env: Any, observation: Any) -> list[Any]:
    """Return each agent's observation with its space."""
    return [(env.observation_space(agent), one) for agent, one in observation.items()]


def each(value: Any) -> list[Any]:
    """Return the values of all agents."""
    return [] if value is None else list(value.values())
