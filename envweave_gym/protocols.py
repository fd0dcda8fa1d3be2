"""The small things an environment may offer beside Gymnasium's interface, and how to reach them through wrappers.

None is required. An environment that has fields of its own to show defines ``episode_state``; one whose actions
a language model can phrase in its own way defines ``parse_action``. Both functions here find them under any
wrappers, on Gymnasium and PettingZoo alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from envweave_gym.faults import InvalidAction, InvalidArgument
from envweave_gym.spaces import Json


@runtime_checkable
class HasEpisodeState(Protocol):
    """An environment with fields of its own to show."""

    def episode_state(self) -> dict[str, Any]:
        """The fields, as JSON."""
        ...


@runtime_checkable
class ParsesActions(Protocol):
    """An environment that reads a model's reply itself; it raises ``ValueError`` on junk."""

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means."""
        ...


def layers(env: Any) -> Iterator[Any]:
    """``env`` and everything it wraps, outermost first."""
    while env is not None:
        yield env
        inner = env.__dict__.get("env")
        env = inner if inner is not None else env.__dict__.get("aec_env")


def state_of(env: Any) -> dict[str, Any]:
    """The metadata of the running episode: ``episode``, ``step_count`` and the environment's own fields."""
    for layer in layers(env):
        if hasattr(type(layer), "stream_state"):
            return layer.stream_state()
    raise InvalidArgument(
        f"state_of({env!r}): nothing there counts episodes; make it with envweave_gym.make, "
        "or wrap it in envweave_gym.RequestStream"
    )


def own_state(core: Any) -> dict[str, Any]:
    """The fields an unwrapped environment shows of itself."""
    return core.episode_state() if isinstance(core, HasEpisodeState) else {}


def parse_action(env: Any, text: str, agent: str | None = None) -> Any:
    """Turn a model's reply into an action of ``env``; ``ValueError`` says why it is none.

    An environment's own ``parse_action`` decides; otherwise the action space does: text spaces take the text as
    it is, ``Discrete`` an integer, everything else JSON. ``agent`` is needed for PettingZoo environments.
    """
    for layer in layers(env):
        if "parse_action" in vars(type(layer)) or (isinstance(layer, ParsesActions) and layer is env.unwrapped):
            return layer.parse_action(text, agent)
    space = env.action_space if agent is None else env.action_space(agent)
    if not isinstance(space, Space):
        raise InvalidArgument("parse_action(env, text): a multi-agent environment needs agent=…")
    if hasattr(env, "single_action_space"):
        space = env.single_action_space
    return read_action(space, text)


_INTEGER = re.compile(r"\s*([+-]?\d+)\s*")


def read_action(space: Space[Any], text: str) -> Any:
    """The member of ``space`` that ``text`` spells."""
    if isinstance(space, Text) and not isinstance(space, Json):
        action: Any = text
    elif isinstance(space, Discrete):
        match = _INTEGER.fullmatch(text)
        if match is None:
            raise InvalidAction(f"{text[:80]!r} is not an integer of {space}")
        action = int(match[1])
    else:
        action = _from_json(space, text)
    if not space.contains(action):
        raise InvalidAction(f"{text[:80]!r} is not in {space}")
    return action


def _from_json(space: Space[Any], text: str) -> Any:
    try:
        return _shaped(space, json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidAction(f"{text[:80]!r} is not JSON for {space}: {error}") from None


def _shaped(space: Space[Any], value: Any) -> Any:
    if isinstance(space, Dict):
        return {key: _shaped(inner, value[key]) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_shaped(inner, item) for inner, item in zip(space.spaces, value, strict=True))
    if isinstance(space, Box | MultiDiscrete | MultiBinary):
        return np.asarray(value, dtype=space.dtype).reshape(space.shape)
    return value
