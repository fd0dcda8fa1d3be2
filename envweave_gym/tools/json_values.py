"""Converts any Python value to JSON, for results of tools."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

_LARGEST_INT = 1 << 10_000
"""Larger integers become a description: Python refuses to print them, as that takes quadratic time."""


def json_value(value: Any) -> Any:
    """Convert a value to JSON: structs and models to objects, arrays to lists, other objects to their ``repr``."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, np.ndarray | np.generic):
        plain = value.tolist()
        return readable(repr(value)) if isinstance(plain, np.generic) else json_value(plain)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, Mapping):
        return {_key(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return json_value(msgspec.to_builtins(value, str_keys=True, enc_hook=json_value))
    return readable(repr(value))


def is_json(value: Any) -> bool:
    """Return whether a value consists of JSON types only, so that :func:`json_value` need not convert it."""
    try:
        return json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


def readable(text: str) -> str:
    """Replace lone surrogates in a text by ``?``, as UTF-8 cannot encode them."""
    return text if type(text) is str and text.isascii() else text.encode(errors="replace").decode()


def _number(value: int | float) -> int | float | str:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return int(value) if abs(value) < _LARGEST_INT else f"an integer of {int(value).bit_length()} bits"


def _key(key: Any) -> str:
    if isinstance(key, str):
        return readable(key)
    plain = json_value(key)
    return plain if isinstance(plain, str) else json.dumps(plain)
