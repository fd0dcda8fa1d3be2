"""Instructions on how to answer, made from action spaces, for environments that write no messages of their own.

A model that reads only an observation cannot know which replies are actions, and would learn from chance hits alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Text

import envweave_gym
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT, ParsesActions, layers, name_of
from envweave_gym.training.tinker.prompts import Message, content_of

_LONGEST_LIST = 8
"""Numbers of an array whose bounds are written one by one."""
_LONGEST_EXAMPLE = 400


def default_instruction(env: Any, agent: str = AGENT) -> str:
    """Return how to spell an action of an agent, for ``parse_action``; empty for texts and where it is not known.

    Raise ``InvalidArgument`` for a space of which no reply is an action.
    """
    space = env.action_space if isinstance(env.action_space, Space) else env.action_space(agent)
    if isinstance(space, Text):
        return ""
    example = _example(space)
    parses = any(isinstance(layer, ParsesActions) for layer in layers(env))
    try:
        envweave_gym.parse_action(env, example, agent)
    except InvalidAction as error:
        if parses:
            return ""  # it names actions in another way, which its messages say
        raise InvalidArgument(
            f"no reply can name an action of {name_of(env)}, as {error}; give the environment a parse_action"
        ) from error
    except Exception:
        if parses:
            return ""  # a parser may need an episode
        raise
    return (
        f"Answer with {_form(space, example)}, and nothing else." if len(example) <= _LONGEST_EXAMPLE else ""
    )


def with_instruction(instruction: str, messages: Sequence[Message]) -> list[Message]:
    """Return the messages after a system message; one that they begin with is extended."""
    if messages and messages[0]["role"] == "system":
        content = f"{instruction}\n{content_of(messages[0])}"
        return [{**messages[0], "content": content}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def _example(space: Space[Any]) -> str:
    """Return an action of the space as text, the same one each time."""
    if isinstance(space, Discrete):
        return str(int(space.start))
    own = copy.deepcopy(space)  # drawing from the environment's would change what it draws
    own.seed(0)
    return json.dumps(jsonable(own.sample()))


def _form(space: Space[Any], example: str) -> str:
    match space:
        case Discrete():
            return f"one whole number {_from_to(space.start, space.start + space.n - 1)}"
        case Box() if not space.shape:
            return " ".join(filter(None, ("one number", _from_to(space.low, space.high))))
        case Box() if len(space.shape) == 1:
            return _list_of("whole numbers" if space.dtype.kind in "iu" else "numbers", space.low, space.high)
        case MultiDiscrete() if len(space.shape) == 1:
            return _list_of("whole numbers", space.start, space.start + space.nvec - 1)
        case MultiBinary() if len(space.shape) == 1:
            return _list_of("whole numbers", np.zeros(space.shape, int), np.ones(space.shape, int))
        case _:
            return f"JSON of the form {example}"


def _list_of(kind: str, low: Any, high: Any) -> str:
    text = f"a JSON list of {len(low)} {kind if len(low) != 1 else kind[:-1]}"
    bounds = [_from_to(*pair) for pair in zip(low, high, strict=True)]
    if len({*bounds}) == 1:
        return f"{text}, {'each ' * (len(low) > 1)}{bounds[0]}" if bounds[0] else text
    if len(bounds) > _LONGEST_LIST:
        return text
    return f"{text}: {'; '.join(one or 'any number' for one in bounds)}"


def _from_to(low: Any, high: Any) -> str:
    """Return the bounds of a number in words, empty for one without bounds."""
    parts = {"from": float(low), "to": float(high)}
    return " ".join(f"{word} {bound:.10g}" for word, bound in parts.items() if abs(bound) < 1e30)
