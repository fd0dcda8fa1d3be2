"""Checking an action and putting it into JSON form, in one pass that a step loop can afford.

``space.contains`` costs more than a step of a small environment, and the stream wants the action as plain JSON
besides. :func:`admission` compiles a space into one function that does both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space

from envweave_gym.spaces import Unicode
from envweave_gym.stream import jsonable

REFUSED: Any = object()
"""What an admission gives for a value that is not in the space."""

Admission = Callable[[Any], Any]


def admission(space: Space[Any]) -> Admission:
    """A function that gives the JSON form of a member of ``space``, and :data:`REFUSED` for anything else."""
    if type(space) is Discrete:
        return _discrete(space)
    if type(space) is Dict:
        return _dict(space)
    if type(space) is Unicode:
        return _unicode(space)
    contains = space.contains

    def admit(x: Any) -> Any:
        return jsonable(x) if contains(x) else REFUSED

    return admit


def _discrete(space: Discrete) -> Admission:
    low, high, contains, int64 = int(space.start), int(space.start + space.n), space.contains, np.int64

    def admit(x: Any) -> Any:
        if type(x) is int:
            return x if low <= x < high else REFUSED
        if type(x) is int64:
            x = int(x)
            return x if low <= x < high else REFUSED
        return int(x) if contains(x) else REFUSED

    return admit


def _unicode(space: Unicode) -> Admission:
    shortest, longest, contains = space.min_length, space.max_length, space.contains

    def admit(x: Any) -> Any:
        if type(x) is str and x.isascii() and shortest <= len(x) <= longest:
            return x
        return str(x) if contains(x) else REFUSED

    return admit


def _dict(space: Dict) -> Admission:
    members = [(key, admission(inner)) for key, inner in space.spaces.items()]
    size, contains = len(members), space.contains

    def admit(x: Any) -> Any:
        if type(x) is not dict:
            return jsonable(x) if contains(x) else REFUSED
        if len(x) != size:
            return REFUSED
        admitted = {}
        for key, inner in members:
            if key not in x:
                return REFUSED
            value = inner(x[key])
            if value is REFUSED:
                return REFUSED
            admitted[key] = value
        return admitted

    return admit
