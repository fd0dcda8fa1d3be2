"""Spaces of fields with simple types (text, numbers, enumerations), and conversions of their values."""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_origin

import msgspec
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Text

from envweave_gym.core.array_conversion import as_array
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.typed.hints import bounds_in, choices, chosen, name_of, split

MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, msgspec.MsgspecError)
"""Exceptions that a conversion may raise for a value that does not fit."""

_CHOICES = 1024  # limit of the values of a bounded int that becomes Discrete
_ALLOWED = (
    "str, bool, int, float, None, Literal, Enum, dataclass, msgspec.Struct, Any, list, dict[str, …], tuple, "
    "unions of these, and Annotated[…, space] for the rest"
)


@dataclass(frozen=True)
class Codec:
    """A space with two functions: ``typed`` converts its members to typed values, ``member`` converts back.

    Values that do not fit raise ``ValueError``.
    """

    space: Any
    typed: Callable[[Any], Any]
    member: Callable[[Any], Any]


def scalar_space(hint: Any) -> Space[Any]:
    """Return the space of a type that is no model, no container and has no annotated space."""
    base, extras = split(hint)
    bounds = bounds_in(extras)
    if values := choices(base):
        return Discrete(len(values))
    if base is str:
        return Unicode(bounds.get("max_length", 4096), min_length=bounds.get("min_length", 0))
    if base is int:
        return _integer_space(bounds)
    if base is float:
        return _real_space(bounds)
    raise InvalidArgument(f"{name_of(hint)} has no space of its own; allowed are {_ALLOWED}")


def _integer_space(bounds: dict[str, Any]) -> Box | Discrete:
    low = max(bounds.get("ge", -math.inf), bounds.get("gt", -math.inf) + 1)  # ints have inclusive bounds
    high = min(bounds.get("le", math.inf), bounds.get("lt", math.inf) - 1)
    if 0 <= high - low < _CHOICES:
        return Discrete(int(high - low + 1), start=int(low))
    limits = np.iinfo(np.int64)
    # An infinite bound marks a side as unbounded.
    return Box(low if low > limits.min else -np.inf, high if high < limits.max else np.inf, (1,), np.int64)


def _real_space(bounds: dict[str, Any]) -> Box:
    low, high = bounds.get("ge", -math.inf), bounds.get("le", math.inf)
    if "gt" in bounds:
        # The next float makes an exclusive bound inclusive.
        low = max(low, math.nextafter(bounds["gt"], math.inf))
    if "lt" in bounds:
        high = min(high, math.nextafter(bounds["lt"], -math.inf))
    return Box(low, high, (1,), np.float64)


def scalar_codec(hint: Any, space: Space[Any]) -> Codec:
    """Return the codec between a type and its space.

    If the author has annotated the space, a sample of it is converted here, so that a space that does not fit the type
    raises an error at once.
    """
    base, extras = split(hint)
    values = choices(base)
    if isinstance(space, Discrete) and values:
        return _choice(values, space)
    if isinstance(space, Json):
        codec = Codec(space, functools.partial(msgspec.convert, type=hint), plain)
    elif base is Any or (base is str and isinstance(space, Text)):
        codec = Codec(space, lambda member: member, lambda value: value)
    elif isinstance(space, Discrete):
        number = space.dtype.type
        codec = Codec(space, lambda n: msgspec.convert(int(n), hint), lambda n: number(operator.index(n)))
    elif isinstance(space, Box) and base in (int, float, bool):
        codec = Codec(
            space,
            lambda x: msgspec.convert(np.asarray(x).item(), hint),
            lambda number: as_array(space, np.reshape(number, space.shape)),
        )
    elif isinstance(space, Box | MultiDiscrete | MultiBinary):
        is_array = (get_origin(base) or base) is np.ndarray
        typed = np.asarray if is_array else lambda x: msgspec.convert(np.asarray(x).tolist(), hint)
        codec = Codec(space, typed, functools.partial(as_array, space))
    else:
        raise InvalidArgument(f"{space} cannot hold a {name_of(base)}; annotate Any instead")
    if chosen(extras):
        codec.typed(copy.deepcopy(space).sample())
    return codec


def _choice(values: list[Any], space: Discrete) -> Codec:
    if len(values) != space.n:
        raise InvalidArgument(f"{space} does not have one number for each of {values}")
    start = int(space.start)
    # By type too, as True equals 1.
    numbers = {(type(value), value): space.dtype.type(start + i) for i, value in enumerate(values)}

    def member(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        return numbers[type(value), value]

    return Codec(space, lambda number: values[int(number) - start], member)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON."""
    return jsonable(msgspec.to_builtins(value, str_keys=True, enc_hook=_unarray))


def _unarray(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ValueError(f"{shown(value)} cannot be written as JSON")
