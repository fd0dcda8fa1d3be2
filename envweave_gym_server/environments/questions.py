"""Answers to questions about an environment that change nothing: state, pictures, attributes, spaces."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import layers, name_of, state_of
from envweave_gym.core.reply_parsing import parse_action
from envweave_gym.episode.stream import Stream
from envweave_gym.wire.messages import Ask
from envweave_gym.wire.spaces import parts_of
from envweave_gym.wire.values import pack
from envweave_gym_server.environments.description import describe
from envweave_gym_server.environments.reset_options import ResetOptions

DESCRIBE = "describe"
"""Question for the description of the environment."""
_PLAIN = (bool, int, float, str, type(None), np.generic, np.ndarray)
_READABLE = "numbers, texts, arrays, and lists, tuples and dicts of those"
_MISSING = object()


def answer_to(env: Any, message: Ask, options: ResetOptions | None, readable: bool) -> Any:
    """Return the packed answer to a question; ``readable`` lets clients read public attributes of ``env``."""
    if message.question == DESCRIBE:
        return pack(describe(env, options))
    answer = _ANSWERS.get(message.question)
    if answer is None:
        known = ", ".join((*_ANSWERS, DESCRIBE))
        raise InvalidArgument(f"there is no question {shown(message.question)}; there are {known}")
    if answer is attribute and not readable:
        raise InvalidArgument(
            f"{name_of(env)}: clients may not read its attributes here, as another package registers it; the "
            "operator can serve a factory of it instead"
        )
    return pack(answer(env, message.argument))


def attribute(env: Any, name: Any) -> Any:
    """Return a public attribute of a Gymnasium environment or its wrappers; for a vector a list with one per row.

    Only plain values are sent. Properties and methods are refused, because reading them would run code.
    """
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise InvalidArgument(f"{shown(name)} is no name of a public attribute; give one, as in 'length'")
    if isinstance(env, SyncVectorEnv):
        return [_attribute_of(one, name) for one in env.envs]
    if isinstance(env, VectorEnv):
        return [_attribute_of(env, name)] * env.num_envs  # its rows are in arrays, and share all others
    if not isinstance(env, gym.Env):
        raise InvalidArgument(f"{name_of(env)}: {shown(name)} cannot be read, as it is a game's attribute")
    return _attribute_of(env, name)


def _attribute_of(env: Any, name: str) -> Any:
    namespaces = [vars(layer) for layer in layers(env)]
    namespaces += [vars(kind) for layer in layers(env) for kind in type(layer).__mro__]
    found = next((names[name] for names in namespaces if name in names), _MISSING)
    if found is _MISSING:
        raise InvalidArgument(f"{name_of(env)} has no public attribute {shown(name)}")
    if not _is_plain(found):
        raise InvalidArgument(
            f"{name_of(env)}: {name} is of type {type(found).__name__} and is not sent; attributes that are "
            f"{_READABLE} can be read"
        )
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN) and not (isinstance(value, np.ndarray) and value.dtype.hasobject)


def _parse_action(env: Any, argument: Any) -> Any:
    text, agent = argument
    return parse_action(env, text, agent)


def _space(env: Any, argument: Any) -> Any:
    """Return the answer of a space to ``contains`` or ``sample``, for clients that do not have the space's class."""
    which, agent, path, question, value = argument
    if which not in ("observation_space", "action_space") or question not in ("contains", "sample"):
        raise InvalidArgument(f"there is no {shown(question)} of {shown(which)}")
    name = f"single_{which}" if isinstance(env, VectorEnv) else which
    space = getattr(env, name) if agent is None else getattr(env, name)(agent)
    for index in path:
        space = parts_of(space)[index]
    if question == "contains":
        return bool(space.contains(value))
    drawn = copy.deepcopy(space) if parts_of(space) else copy.copy(space)  # a question changes nothing
    drawn.seed(value)
    return drawn.sample()


def _entrust(env: Any, secrets: Any) -> None:
    """Pass secrets to the environment's method ``entrust``; they appear in no event, log or state."""
    env.unwrapped.entrust(**secrets)


_ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "state": lambda env, _: state_of(env),
    "global_state": lambda env, _: env.state(),
    "render": lambda env, _: env.render(),
    "parse_action": _parse_action,
    "observe": lambda env, agent: env.observe(agent),
    "record": lambda env, _: [env.record.turn, Stream((), tuple(env.record.events))],
    "space": _space,
    "entrust": _entrust,
    "attribute": attribute,
}
