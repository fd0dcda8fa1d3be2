"""Instructions on how to answer, made from action spaces, for environments that write no messages of their own.

A model that reads only an observation cannot know which replies are actions, and would learn from chance hits alone.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Text

from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT, ParsesActions, layers, name_of
from envweave_gym.core.reply_parsing import parse_action

ANSWER = "Answer with {form}, and nothing else."
"""The sentence for a model whose whole reply is the action."""
_LONGEST_LIST = 8
"""Numbers of an array whose bounds are written one by one."""
_LONGEST_EXAMPLE = 400


def default_instruction(env: Any, agent: str = AGENT, sentence: str = ANSWER) -> str:
    """Return a sentence with the form of an agent's action, as ``parse_action`` reads it.

    It is empty for texts, and where the form is not known or too long. Raise ``InvalidArgument`` for a space of which
    no reply is an action.
    """
    is_single = isinstance(env.action_space, Space)
    space = env.action_space if is_single else env.action_space(agent)
    if isinstance(space, Text):
        return ""
    example = _example(space)
    parses = any(isinstance(layer, ParsesActions) for layer in layers(env))
    try:
        parse_action(env, example, None if is_single else agent)
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
    return sentence.format(form=_form(space, example)) if len(example) <= _LONGEST_EXAMPLE else ""


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
