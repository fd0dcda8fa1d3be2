"""Checks of what an environment returned: what no trainer may learn from raises :class:`EpisodeLost`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from envweave_gym.core.faults import EnvweaveError, Fault, FaultKind, fault_of, shown
from envweave_gym.core.spaces import Chat, Json
from envweave_gym.episode.stream import EventKind, stream_of
from envweave_gym.episode.trainable import trainable

_MISFITS = (TypeError, ValueError, RuntimeError)
"""Exceptions of conversions to a number or an array."""


class EpisodeLost(EnvweaveError):
    """Raised if an episode was lost: it was not played to its end, or its results are wrong, so it has no reward."""

    def __init__(self, message: str = "", fault: Fault | None = None) -> None:
        """Take the fault that the environment reported; without one the message becomes a crash."""
        super().__init__(message)
        self.fault = fault or Fault(FaultKind.CRASH, message, retryable=True)


def fault_from(error: BaseException) -> Fault:
    """Return the fault of an exception that ended an episode."""
    return error.fault if isinstance(error, EpisodeLost) else fault_of(error)


def lost_by(fault: Fault) -> EpisodeLost:
    """Return the exception for a fault."""
    return EpisodeLost(f"the episode was lost ({fault.kind}): {fault.message}", fault)


def check_info(info: Any, *, acted: bool = False) -> None:
    """Raise :class:`EpisodeLost` for an info with a fault, or of a step (``acted``) that was no transition."""
    if isinstance(fault := info.get("fault"), Fault):
        raise lost_by(fault)
    if acted and not trainable(info):
        raise lost_by(Fault(FaultKind.LOST, "a step of the environment was no transition", retryable=True))


def checked_reward(reward: Any) -> float:
    """Return a reward as a float; raise :class:`EpisodeLost` for NaN, infinity, and what is no number."""
    try:
        if isinstance(reward, str | bytes):  # float() would read "1"
            raise TypeError
        value = float(reward)
    except _MISFITS:
        raise _wrong(f"the reward {shown(reward)}, which is no number") from None
    if not math.isfinite(value):
        raise lost_by(Fault(FaultKind.CRASH, f"the environment gave the reward {reward}", retryable=True))
    return value


def checked_flag(name: str, value: Any) -> bool:
    """Return ``terminated`` or ``truncated`` as a bool; raise :class:`EpisodeLost` for any other type."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    # Arrays of other libraries, such as those of JAX, have a dtype of their own.
    if str(getattr(value, "dtype", "")).endswith("bool") and getattr(value, "shape", None) == ():
        return bool(value)
    raise _wrong(f"{name}={shown(value)}, which is no bool")


def check_observation(space: Any, observation: Any) -> None:
    """Raise :class:`EpisodeLost` for an observation whose type is none of its space; bounds are not compared."""
    if not _has_type_of(space, observation):
        raise _wrong(f"the observation {shown(observation)}, whose type is not that of {shown(space)}")


def _wrong(what: str) -> EpisodeLost:
    return lost_by(Fault(FaultKind.CRASH, f"the environment gave {what}", retryable=False))


def _has_type_of(space: Space[Any] | None, value: Any) -> bool:
    match space:
        case Chat():
            return isinstance(value, list | tuple)
        case Json():
            return True
        case Text():
            return isinstance(value, str)
        case Discrete():
            return _kind_of(value) in ("b", "i", "u") and np.ndim(value) == 0
        case Box() | MultiBinary() | MultiDiscrete():
            return _kind_of(value) in ("b", "i", "u", "f")
        case Dict():
            return isinstance(value, Mapping) and all(
                key in value and _has_type_of(part, value[key]) for key, part in space.spaces.items()
            )
        case Tuple():
            return (
                isinstance(value, list | tuple)
                and len(value) == len(space.spaces)
                and all(map(_has_type_of, space.spaces, value))
            )
        case _:
            return True


def _kind_of(value: Any) -> str:
    """Return the kind of an array's dtype: b, i, u and f are bools, integers and floats; empty for no array."""
    try:
        return np.asarray(value).dtype.kind
    except _MISFITS:
        return ""


def numbers_of(info: Any) -> dict[str, float]:
    """Return the numbers in the ``metrics`` events of an info; of two with one name, the later one."""
    stream = stream_of(info)
    numbers: dict[str, float] = {}
    for event in () if stream is None else stream.of_kind(EventKind.METRICS):
        numbers |= {name: float(value) for name, value in event.data.items()}
    return numbers
