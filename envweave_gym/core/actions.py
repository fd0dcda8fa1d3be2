"""Checking an action and putting it into JSON form, in one pass that a step loop can afford.

``space.contains`` costs more than a step of a small environment, and the stream wants the action as plain
JSON besides. :func:`admission` compiles a space into one function that does both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from operator import index
from types import CodeType
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space

from envweave_gym.core.spaces import Unicode
from envweave_gym.episode.stream import jsonable

REFUSED: Any = object()
"""What an admission gives for a value that is not in the space."""

Admission = Callable[[Any], Any]


def admission(space: Space[Any]) -> Admission:
    """A function that gives the JSON form of a member of ``space``, and :data:`REFUSED` for anything else."""
    compiled = _COMPILED.get(type(space))
    return partial(_other, space) if compiled is None else compiled(space)


def _other(space: Space[Any], x: Any) -> Any:
    return jsonable(x) if contains(space, x) else REFUSED


def contains(space: Space[Any], x: Any) -> bool:
    """Whether ``x`` is a member of ``space``; what is of quite another kind is none."""
    try:
        return space.contains(x)
    except (TypeError, ValueError, OverflowError):  # so some spaces answer it
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
    """One function written out for these members: a loop over them costs more than their checks."""
    known: dict[str, Any] = {
        "REFUSED": REFUSED,
        "index": index,
        "int64": np.int64,
        "other": partial(_other, space),
    }
    reading, checks, built = ["pass"], "", []
    for i, (key, inner) in enumerate(space.spaces.items()):
        known |= {f"key{i}": key, f"name{i}": str(key), f"admit{i}": admission(inner)}
        reading.append(f"x{i} = x[key{i}]")
        checks += _member(inner, i)
        built.append(f"name{i}: x{i}")
    source = _DICT.format(
        size=len(space.spaces), reading="; ".join(reading), checks=checks, built=", ".join(built)
    )
    exec(_code(source), known)
    return known["admit"]


@lru_cache(maxsize=256)
def _code(source: str) -> CodeType:
    """What is written out for one environment serves all like it; nothing in it is anybody's text."""
    return compile(source, "<members of a Dict>", "exec")


def _member(inner: Space[Any], i: int) -> str:
    if type(inner) is not Discrete:
        return _ANY_MEMBER.format(i=i)
    return _DISCRETE_MEMBER.format(i=i, low=int(inner.start), high=int(inner.start + inner.n))


_DICT = """
def admit(x):
    if type(x) is not dict:
        return other(x)
    if len(x) != {size}:
        return REFUSED
    try:
        {reading}
    except KeyError:
        return REFUSED
{checks}
    return {{{built}}}
"""
_ANY_MEMBER = """
    x{i} = admit{i}(x{i})
    if x{i} is REFUSED:
        return REFUSED
"""
_DISCRETE_MEMBER = """
    if type(x{i}) is int64:
        x{i} = index(x{i})
    elif type(x{i}) is not int:
        x{i} = admit{i}(x{i})
        if x{i} is REFUSED:
            return REFUSED
    if not {low} <= x{i} < {high}:
        return REFUSED
"""

_COMPILED: dict[type, Callable[[Any], Admission]] = {Discrete: _discrete, Unicode: _unicode, Dict: _dict}
