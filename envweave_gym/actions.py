"""Checking an action and putting it into JSON form, in one pass that a step loop can afford.

``space.contains`` costs more than a step of a small environment, and the stream wants the action as plain
JSON besides. :func:`admission` compiles a space into one function that does both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space

from envweave_gym.spaces import Unicode, encodable
from envweave_gym.stream import jsonable

REFUSED: Any = object()
"""What an admission gives for a value that is not in the space."""

Admission = Callable[[Any], Any]


def admission(space: Space[Any]) -> Admission:
    """A function that gives the JSON form of a member of ``space``, and :data:`REFUSED` for anything else."""
    compiled = _COMPILED.get(type(space))
    if compiled is not None:
        return compiled(space)

    def admit(x: Any) -> Any:
        return jsonable(x) if _contains(space, x) else REFUSED

    return admit


def _contains(space: Space[Any], x: Any) -> bool:
    try:
        return space.contains(x)
    except (TypeError, ValueError, OverflowError):  # so some spaces answer what is of quite another kind
        return False


def _discrete(space: Any) -> Admission:
    low, high, int64 = int(space.start), int(space.start + space.n), np.int64

    def admit(x: Any) -> Any:
        if type(x) is not int:
            if type(x) is not int64 and not _contains(space, x):
                return REFUSED
            x = int(x)
        return x if low <= x < high else REFUSED

    return admit


def _unicode(space: Any) -> Admission:
    shortest, longest = space.min_length, space.max_length

    def admit(x: Any) -> Any:
        if type(x) is not str:
            return str.__str__(x) if _contains(space, x) else REFUSED
        return x if shortest <= len(x) <= longest and (x.isascii() or encodable(x)) else REFUSED

    return admit


def _dict(space: Any) -> Admission:
    members = [(key, str(key), admission(inner)) for key, inner in space.spaces.items()]
    size = len(members)

    def admit(x: Any) -> Any:
        if type(x) is not dict:
            return jsonable(x) if _contains(space, x) else REFUSED
        if len(x) != size:
            return REFUSED
        admitted = {}
        try:
            for key, name, inner in members:
                value = inner(x[key])
                if value is REFUSED:
                    return REFUSED
                admitted[name] = value
        except KeyError:
            return REFUSED
        return admitted

    return admit


_COMPILED: dict[type, Callable[[Any], Admission]] = {Discrete: _discrete, Unicode: _unicode, Dict: _dict}
