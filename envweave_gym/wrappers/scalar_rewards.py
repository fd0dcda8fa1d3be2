"""Converts rewards that are lists, arrays or dicts (of several objectives or agents) to one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from envweave_gym.core.faults import InvalidArgument, shown


def _parts(reward: Any) -> Any:
    return np.ravel([*reward.values()] if isinstance(reward, Mapping) else reward)


_NAMED: dict[str, Callable[[Any], Any]] = {
    "sum": lambda reward: _parts(reward).sum(),
    "first": lambda reward: _parts(reward)[0],
}


def is_scalar_reward(given: Any) -> bool:
    """Return whether ``given`` is a valid ``reward=`` argument: a function, or ``"sum"`` or ``"first"``."""
    return callable(given) or (isinstance(given, str) and given in _NAMED)


def scalar_reward(name: str, given: Any) -> Callable[[Any], float] | None:
    """Return a function that converts rewards to floats, as the argument ``reward=`` says; ``None`` for ``None``.

    ``given`` is ``"sum"``, ``"first"`` or a function; anything else raises ``InvalidArgument``. ``name`` is for errors.
    """
    if given is None:
        return None
    if not is_scalar_reward(given):
        raise InvalidArgument(f"{name}: reward={shown(given)} is not 'sum', 'first' or a function")
    make = _NAMED[given] if isinstance(given, str) else given
    return lambda reward: as_number(name, make(reward))


def as_number(name: str, reward: Any) -> float:
    """Return the reward as a float; raise ``TypeError``, with the advice to give ``reward=``, if it is no number."""
    try:
        if isinstance(reward, str | bytes):  # float() would read "1"
            raise TypeError
        return float(reward)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"{name}: the reward {shown(reward)} is no number; make one of it with reward='sum', "
            "reward='first' or reward=<a function>"
        ) from None
