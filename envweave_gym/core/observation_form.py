"""Checks the form of an observation, shape and dtype against its space, before a vector stacks it with others.

Bounds are not checked, and neither are spaces whose members a vector does not stack, such as texts: that would cost
more than many steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from envweave_gym.core.faults import shown

_ARRAYS = (Box, Discrete, MultiBinary, MultiDiscrete)
_UNREADABLE = (TypeError, ValueError, KeyError, IndexError, AttributeError, RuntimeError)
"""Exceptions of reading a member of a value that has none, or converting it to an array."""


def stackable(space: Space[Any]) -> Callable[[Any], bool] | None:
    """Return a function that says whether a value has the form of ``space``; ``None`` if any value has."""
    # By exact type, as a subclass may be stacked in another way.
    if type(space) in _ARRAYS:
        return _array(space)
    if type(space) is Dict:
        return _members(list(space.spaces.items()), None)
    if type(space) is Tuple:
        return _members(list(enumerate(space.spaces)), len(space.spaces))
    return None


def wrong_observation(name: str, call: str, observation: Any, space: Space[Any]) -> TypeError:
    """Return the exception for an observation of ``call`` ("reset" or "step") that has not the form of ``space``."""
    if isinstance(observation, np.ndarray):
        found = f"an array of shape {observation.shape} and dtype {observation.dtype}"
    else:
        found = f"{shown(observation)} of type {type(observation).__name__}"
    text = " ".join(str(space).split())
    return TypeError(
        f"{name}: {call}() returned {found} as observation, which does not fit the space "
        f"{text if len(text) <= 200 else text[:197] + '...'}; mend the environment"
    )


def _array(space: Space[Any]) -> Callable[[Any], bool]:
    shape, dtype = space.shape, space.dtype
    assert dtype is not None
    scalar = dtype.type if shape == () else None
    takes_int = shape == () and dtype == np.int64
    known = {dtype}  # dtypes that can be cast, as can_cast() takes long

    def fits(value: Any) -> bool:
        kind = type(value)
        if kind is scalar or (kind is int and takes_int and value.bit_length() < 64):
            return True
        if kind is np.ndarray:
            if value.shape == shape and value.dtype in known:
                return True
            array = value
        else:
            try:
                array = np.asarray(value)
            except _UNREADABLE:
                return False
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            return False
        known.add(array.dtype)
        return True

    return fits


def _members(spaces: list[tuple[Any, Space[Any]]], length: int | None) -> Callable[[Any], bool]:
    """Return the check of a Dict, or of a Tuple with ``length`` members."""
    checks = [(key, stackable(space)) for key, space in spaces]

    def fits(value: Any) -> bool:
        try:
            if length is not None and len(value) != length:
                return False
            for key, check in checks:
                member = value[key]
                if check is not None and not check(member):
                    return False
        except _UNREADABLE:
            return False
        return True

    return fits
