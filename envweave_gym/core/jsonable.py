"""Converts any value to plain JSON, for the data of events."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np


def jsonable(value: Any) -> Any:
    """Convert ``value`` to plain JSON that JSON and msgpack both decode to an equal value.

    NumPy scalars and arrays, enums, tuples and mappings become plain numbers, lists and dicts. Other objects
    become their ``repr`` without memory addresses. NaN becomes ``"nan"``, which ``float`` reads back. An int
    beyond 64 bits becomes its hexadecimal digits, and a lone surrogate its escape.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _utf8(value)
    if kind is bool or value is None:
        return value
    if kind is int:  # msgpack holds 64 bits
        return value if -(1 << 63) <= value < 1 << 64 else hex(value)
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if kind is dict or isinstance(value, Mapping):
        return {str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    return _unpacked(value)


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text


def _unpacked(value: Any) -> Any:
    """Convert values of rare types for :func:`jsonable`: arrays, enums, subclasses of plain types, others."""
    if isinstance(value, np.ndarray | np.generic):
        wide = _NARROWER.get(value.dtype.char)  # long doubles have no plain Python form
        return jsonable((value if wide is None else value.astype(wide)).tolist())
    if isinstance(value, Enum):
        return jsonable(value.value)
    for plain in (int, float):
        if isinstance(value, plain):
            return jsonable(plain(value))
    if isinstance(value, str):
        return jsonable(str.__str__(value))
    return jsonable(_ADDRESS.sub("", repr(value)))


_NARROWER = {"g": np.float64, "G": np.complex128}
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
