"""Public attributes of environments, read for clients: plain values only, and nothing is called."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.protocols import layers, name_of

_PLAIN = (bool, int, float, str, type(None), np.generic, np.ndarray)
_READABLE = "numbers, texts, arrays, and lists, tuples and dicts of those"


def attribute(env: Any, name: Any) -> Any:
    """The attribute of a Gymnasium environment, wherever in its stack it is; of a vector a list, by row.

    Properties and methods are code, which is not run for this.
    """
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise InvalidArgument(f"{shown(name)} is no name of a public attribute; give one, as in 'length'")
    if isinstance(env, SyncVectorEnv):
        return [_of_one(one, name) for one in env.envs]
    if isinstance(env, VectorEnv):
        return [_of_one(env, name)] * env.num_envs  # its rows are in arrays, and share all other attributes
    if not isinstance(env, gym.Env):
        raise InvalidArgument(f"{name_of(env)}: {shown(name)} cannot be read, as it is a game's attribute")
    return _of_one(env, name)


def _of_one(env: Any, name: str) -> Any:
    namespaces = [vars(one) for one in layers(env)]
    namespaces += [vars(kind) for one in layers(env) for kind in type(one).__mro__]
    found = next((names[name] for names in namespaces if name in names), _of_one)
    if found is _of_one:
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
