"""Conversion of Gymnasium spaces to JSON schemas, for protocols that describe actions and observations by those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import UNBOUNDED, Chat, Json

Schema = dict[str, Any]

_MOST_OPTIONS = 64
"""Limit of the values that a schema lists one by one, as those of a ``MultiDiscrete`` with different sizes."""


def schema_of_space(space: Space[Any]) -> Schema:
    """Return a JSON schema of the JSON form of a space's members: arrays and tuples are lists, ``Dict`` an object.

    The schema may accept more than the space does, but refuses no member. A space of another class has the schema
    ``{}``, which accepts everything.
    """
    for kind in type(space).__mro__:
        make = _SCHEMAS.get(kind)
        if make is not None:
            return make(space)
    return {}


def object_schema(members: dict[str, Schema], required: list[str] | None = None) -> Schema:
    """Return the schema of an object with these members and no others; all are required by default."""
    return {
        "type": "object",
        "properties": members,
        "required": list(members) if required is None else required,
        "additionalProperties": False,
    }


def _text(space: Text) -> Schema:
    schema: Schema = {"type": "string"}
    if space.min_length:
        schema["minLength"] = space.min_length
    if space.max_length < UNBOUNDED:
        schema["maxLength"] = space.max_length
    return schema


def _chat(space: Chat) -> Schema:
    text = {"type": "string"}
    message = {
        "type": "object",
        "properties": {"role": text, "content": text},
        "required": ["role", "content"],
    }
    return {"type": "array", "items": message}


def _discrete(space: Discrete) -> Schema:
    start = int(space.start)
    return {"type": "integer", "minimum": start, "maximum": start + int(space.n) - 1}


def _box(space: Box[Any]) -> Schema:
    kind = np.dtype(space.dtype).kind
    if kind == "f":  # JSON has no such numbers
        return _nested({"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}, space.shape)
    if kind == "b":
        return _nested({"type": "boolean"}, space.shape)
    bounds = {"minimum": int(space.low.min()), "maximum": int(space.high.max())} if space.low.size else {}
    return _nested({"type": "integer", **bounds}, space.shape)


def _multi_binary(space: MultiBinary) -> Schema:
    return _nested({"type": "integer", "minimum": 0, "maximum": 1}, space.shape)


def _multi_discrete(space: MultiDiscrete[Any]) -> Schema:
    low, high = space.start, space.start + space.nvec - 1
    if space.nvec.ndim == 1 and space.nvec.size <= _MOST_OPTIONS:
        items = [
            {"type": "integer", "minimum": int(first), "maximum": int(last)}
            for first, last in zip(low, high, strict=True)
        ]
        return _list_of(items)
    number = {"type": "integer", "minimum": int(low.min()), "maximum": int(high.max())}
    return _nested(number, space.shape)


def _nested(item: Schema, shape: tuple[int, ...] | None) -> Schema:
    """Return the schema of nested lists of ``item`` with this shape."""
    for size in reversed(shape or ()):
        item = {"type": "array", "items": item, "minItems": size, "maxItems": size}
    return item


def _list_of(items: list[Schema]) -> Schema:
    size = len(items)
    return {"type": "array", "prefixItems": items, "minItems": size, "maxItems": size}


def _dict(space: Dict) -> Schema:
    return object_schema({str(jsonable(key)): schema_of_space(part) for key, part in space.spaces.items()})


def _one_of(space: OneOf[Any]) -> Schema:
    options = [_list_of([{"const": index}, schema_of_space(part)]) for index, part in enumerate(space.spaces)]
    return {"anyOf": options}


_SCHEMAS: dict[type, Callable[[Any], Schema]] = {
    Chat: _chat,
    Json: lambda _: {},
    Text: _text,
    Discrete: _discrete,
    Box: _box,
    MultiBinary: _multi_binary,
    MultiDiscrete: _multi_discrete,
    Dict: _dict,
    Tuple: lambda space: _list_of([schema_of_space(part) for part in cast("Tuple[Any]", space).spaces]),
    OneOf: _one_of,
    Sequence: lambda space: (
        {} if space.stack else {"type": "array", "items": schema_of_space(space.feature_space)}
    ),
}
