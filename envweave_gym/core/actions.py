"""Checks an action against its space and converts it to JSON, in one pass.

``space.contains`` costs more than a step of a small environment, and the stream needs the action as plain
JSON besides. :func:`admission` returns a closure for a space that does both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space

from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import Unicode

REFUSED: Any = object()
"""The result of an admission for a value that is not in the space."""

Admission = Callable[[Any], Any]


def admission(space: Space[Any]) -> Admission:
    """A function that returns the JSON form of a member of ``space``, and :data:`REFUSED` for others."""
    make = _ADMISSIONS.get(type(space))
    return partial(_other, space) if make is None else make(space)


def _other(space: Space[Any], x: Any) -> Any:
    return jsonable(x) if contains(space, x) else REFUSED


def contains(space: Space[Any], x: Any) -> bool:
    """Whether ``x`` is a member of ``space``; a value of another type is not."""
    try:
        return space.contains(x)
    except (TypeError, ValueError, OverflowError):  # some spaces raise these for other types
        return False


def _discrete(space: Any) -> Admission:
    low, high, int64 = int(space.start), int(space.start + space.n), np.int64

    def admit(x: Any) -> Any:
        if type(x) is not int:
            if type(x) is not int64 and not contains(space, x):
                return REFUSED
            x = index(x)
        return x if low <= x < high else REFUSED

    return admit


def _unicode(space: Any) -> Admission:
    shortest, longest = space.min_length, space.max_length

    def admit(x: Any) -> Any:
        if type(x) is not str:
            return str.__str__(x) if contains(space, x) else REFUSED
        try:
            x.encode()
        except UnicodeEncodeError:  # a lone surrogate
            return REFUSED
        return x if shortest <= len(x) <= longest else REFUSED

    return admit


def _dict(space: Any) -> Admission:
    members = [(key, str(key), admission(inner)) for key, inner in space.spaces.items()]
    size = len(members)

    def admit(x: Any) -> Any:
        if type(x) is not dict:
            return _other(space, x)
        if len(x) != size:
            return REFUSED
        admitted: dict[str, Any] = {}
        for key, name, admit_member in members:
            try:
                member = x[key]
            except KeyError:
                return REFUSED
            admitted[name] = member = admit_member(member)
            if member is REFUSED:
                return REFUSED
        return admitted

    return admit


_ADMISSIONS: dict[type, Callable[[Any], Admission]] = {Discrete: _discrete, Unicode: _unicode, Dict: _dict}
