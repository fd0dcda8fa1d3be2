"""Codecs between single JSON values and simple Gymnasium spaces, from JSON schemas.

A schema that no simple space expresses gives ``None``, and one that is no JSON schema raises :class:`BadSchema`. The
work for one schema is bounded: references are followed a few times, and arrays have a size limit. The functions of
codecs are partial calls of this module's, as codecs are pickled with their environments.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from envweave_gym.core.faults import shown
from envweave_gym.core.spaces import UNBOUNDED, Unicode
from envweave_gym.typed.scalars import Codec

_MAX_CHOICES = 1024
"""Limit of the values of an enumeration or a bounded integer that becomes ``Discrete``."""
_MAX_ITEMS = 65_536
"""Limit of the numbers in an array that becomes a ``Box``."""
_MAX_SHORTEST = 4096
"""Limit of ``minLength``: a longer text would have to be built for each sample."""
_MAX_REFERENCES, _MAX_DIMENSIONS = 16, 8
_MAX_EXACT = 2**53
"""Limit of the bounds of integers, which floats express exactly."""
_UNIONS = ("anyOf", "oneOf", "allOf")
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")

Schema = dict[str, Any]


class BadSchema(ValueError):
    """Error if a server's schema breaks the rules of JSON schemas."""


def resolved(root: Schema, schema: Any) -> Schema:
    """Return the schema that ``$ref``, or an ``allOf`` of one schema, leads to within ``root``."""
    for _ in range(_MAX_REFERENCES):
        if isinstance(schema, bool):  # any value or none
            return {}
        if not isinstance(schema, dict):
            raise BadSchema(f"{shown(schema)} is no schema")
        if "$ref" in schema:
            schema = _target(root, schema["$ref"])
        elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
            schema = schema["allOf"][0]
        else:
            return schema
    raise BadSchema(f"its references lead nowhere within {_MAX_REFERENCES} steps")


def _target(root: Schema, reference: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise BadSchema(f"$ref={shown(reference)} is no reference within the schema")
    found: Any = root
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise BadSchema(f"$ref={shown(reference)} leads to nothing")
        found = found[name]
    return found


def codec_of(root: Schema, schema: Any) -> Codec | None:
    """Return the codec of a schema within ``root`` that a simple space expresses, else ``None``."""
    schema = resolved(root, schema)
    for union in _UNIONS:
        if union in schema:
            if not isinstance(schema[union], list):
                raise BadSchema(f"{union}={shown(schema[union])} is no list of schemas")
            return None
    if "const" in schema:
        return _of_choices([schema["const"]])
    if "enum" in schema:
        return _of_choices(schema["enum"])
    match _type_in(schema):
        case "string":
            return _of_text(schema)
        case "integer":
            return _of_integer(schema)
        case "number":
            low, high = _bounds(schema)
            return _of_array((1,), np.float64, low, high, is_scalar=True)
        case "boolean":
            return Codec(Discrete(2), _to_bool, _from_bool)
        case "array":
            return _of_items(root, schema)
        case _:
            return None


def _type_in(schema: Schema) -> str | None:
    kind = schema.get("type")
    kinds: list[Any] = kind if isinstance(kind, list) else [kind]
    for one in kinds:
        if kind is not None and (not isinstance(one, str) or one not in _TYPES):
            raise BadSchema(f"type={shown(kind)} is none of {', '.join(_TYPES)}")
    return kinds[0] if len(kinds) == 1 else None


def _number(schema: Schema, name: str, default: float) -> float:
    value = schema.get(name, default)
    if type(value) not in (int, float) or value != value:
        raise BadSchema(f"{name}={shown(value)} is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _count(schema: Schema, name: str, default: int) -> int:
    value = schema.get(name, default)
    if type(value) is not int or value < 0:
        raise BadSchema(f"{name}={shown(value)} is no integer from 0 on")
    return value


# Enumerations and booleans


def _of_choices(values: Any) -> Codec | None:
    if not isinstance(values, list) or not values:
        raise BadSchema(f"enum={shown(values)} is no list of values")
    if len(values) > _MAX_CHOICES or any(isinstance(one, list | dict) for one in values):
        return None
    numbers = {(type(one), one): number for number, one in enumerate(values)}
    if len(numbers) < len(values):
        raise BadSchema(f"enum={shown(values)} has a value twice")
    return Codec(Discrete(len(values)), partial(_to_choice, values), partial(_from_choice, numbers))


def _to_choice(values: list[Any], member: Any) -> Any:
    return values[int(member)]


def _from_choice(numbers: dict[Any, int], value: Any) -> Any:
    if isinstance(value, list | dict) or (type(value), value) not in numbers:
        raise ValueError(f"{shown(value)} is none of {', '.join(repr(one) for _, one in numbers)}")
    return np.int64(numbers[type(value), value])


def _to_bool(member: Any) -> bool:
    return bool(member)


def _from_bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not true or false")
    return np.int64(value)


# Texts


def _of_text(schema: Schema) -> Codec | None:
    shortest, longest = _count(schema, "minLength", 0), _count(schema, "maxLength", UNBOUNDED)
    if shortest > longest:
        raise BadSchema(f"minLength={shortest} is more than maxLength={longest}")
    if shortest > _MAX_SHORTEST:
        return None
    space = Unicode(longest if longest < UNBOUNDED else None, min_length=shortest)
    return Codec(space, _same, partial(_checked, space))


def _same(value: Any) -> Any:
    return value


def _checked(space: Any, value: Any) -> Any:
    if not space.contains(value):
        raise ValueError(f"{shown(value)} is not in {space}")
    return value


# Numbers and arrays of them


def _bounds(schema: Schema) -> tuple[float, float]:
    """Return the least and the greatest number that the schema allows."""
    low = max(
        _number(schema, "minimum", -math.inf),
        math.nextafter(_number(schema, "exclusiveMinimum", -math.inf), math.inf)
        if "exclusiveMinimum" in schema
        else -math.inf,
    )
    high = min(
        _number(schema, "maximum", math.inf),
        math.nextafter(_number(schema, "exclusiveMaximum", math.inf), -math.inf)
        if "exclusiveMaximum" in schema
        else math.inf,
    )
    if low > high:
        raise BadSchema("its bounds leave no number")
    return low, high


def _whole_bounds(schema: Schema) -> tuple[float, float] | None:
    """Return the least and the greatest integer that the schema allows; ``None`` if they are beyond 2**53."""
    low, high = _bounds(schema)
    low, high = (one if math.isinf(one) else float(rounded(one)) for one, rounded in _rounded(low, high))
    if low > high:
        raise BadSchema("its bounds leave no integer")
    if any(math.isfinite(one) and abs(one) > _MAX_EXACT for one in (low, high)):
        return None
    return low, high


def _rounded(low: float, high: float) -> tuple[tuple[float, Any], tuple[float, Any]]:
    return (low, math.ceil), (high, math.floor)


def _of_integer(schema: Schema) -> Codec | None:
    bounds = _whole_bounds(schema)
    if bounds is None or bounds[0] == math.inf or bounds[1] == -math.inf:
        return None
    low, high = bounds
    if high - low < _MAX_CHOICES:
        space = Discrete(int(high - low) + 1, start=int(low))
        return Codec(space, int, partial(_from_integer, space))
    return _of_array((1,), np.int64, low, high, is_scalar=True)


def _from_integer(space: Discrete, value: Any) -> Any:
    if type(value) is not int or not space.start <= value < space.start + space.n:
        raise ValueError(f"{shown(value)} is not in {space}")
    return np.int64(value)


def _of_items(root: Schema, schema: Schema) -> Codec | None:
    """Return the codec of an array of numbers whose shape is fixed."""
    shape: list[int] = []
    while _type_in(schema) == "array":
        fewest, most = _count(schema, "minItems", 0), _count(schema, "maxItems", UNBOUNDED)
        if fewest > most:
            raise BadSchema(f"minItems={fewest} is more than maxItems={most}")
        shape.append(fewest)
        is_fixed = fewest == most and 0 < math.prod(shape) <= _MAX_ITEMS
        if "items" not in schema or "prefixItems" in schema or not is_fixed or len(shape) > _MAX_DIMENSIONS:
            return None
        schema = resolved(root, schema["items"])
    if any(name in schema for name in (*_UNIONS, "enum", "const")):
        return None
    kind = _type_in(schema)
    if kind == "number":
        return _of_array(tuple(shape), np.float64, *_bounds(schema))
    bounds = _whole_bounds(schema) if kind == "integer" else None
    return None if bounds is None else _of_array(tuple(shape), np.int64, *bounds)


def _of_array(
    shape: tuple[int, ...], dtype: Any, low: float, high: float, *, is_scalar: bool = False
) -> Codec | None:
    if low == math.inf or high == -math.inf:  # all numbers are beyond those of a float
        return None
    if math.isfinite(low) and math.isfinite(high) and math.isinf(high - low):  # no sample could be drawn
        return None
    space = Box(low, high, shape, dtype)
    return Codec(space, partial(_to_numbers, is_scalar), partial(_from_numbers, space, is_scalar))


def _to_numbers(is_scalar: bool, member: Any) -> Any:
    array = np.asarray(member)
    return array.item() if is_scalar else array.tolist()


def _from_numbers(space: Any, is_scalar: bool, value: Any) -> Any:
    numbers = [value] if is_scalar else value
    allowed = (int,) if space.dtype.kind == "i" else (int, float)
    if not _all_numbers(numbers, allowed, len(space.shape)):
        raise ValueError(
            f"{shown(value)} is not {'a number' if is_scalar else 'an array of numbers'} of {space}"
        )
    array = np.asarray(numbers, dtype=space.dtype)
    if array.shape != space.shape or not space.contains(array):
        raise ValueError(f"{shown(value)} is not in {space}")
    return array


def _all_numbers(value: Any, allowed: tuple[type, ...], depth: int) -> bool:
    """Return whether ``value`` is lists nested ``depth`` times, of numbers of the ``allowed`` types."""
    if depth == 0:
        return type(value) in allowed
    return isinstance(value, list) and all(_all_numbers(item, allowed, depth - 1) for item in value)
