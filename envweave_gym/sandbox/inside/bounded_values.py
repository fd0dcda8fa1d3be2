"""Converts any Python value to text or JSON of a limited size, even if the value's class misbehaves."""

from __future__ import annotations

import math
import reprlib
import sys
from typing import Any

from .channel import encoded

_MAX_VALUES = 10_000  # that are visited inside one value
_name_of = type.__dict__["__name__"].__get__
"""Function that reads a class's name even if its metaclass redefines ``__name__``."""


def type_name(value: Any) -> str:
    """Return the name of a value's class."""
    return _name_of(type(value))


def shown(value: Any, longest: int) -> str:
    """Return the ``repr`` of a value; if it has more than ``longest`` characters, its middle is cut out.

    The size of built-in containers is estimated first, so that no text of a gigabyte is built only to be cut. If
    ``repr`` raises, the returned text says so.
    """
    try:
        text = repr(value) if _size(value, longest, _MAX_VALUES) <= longest else _short(longest).repr(value)
    except Exception as error:  # noqa: BLE001 - the class of a value may raise anything
        return f"<{type_name(value)} whose repr raises {type_name(error)}>"
    return cut(text, longest)


def cut(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters: a longer one gets a mark in place of its middle."""
    if len(text) <= longest:
        return text
    mark = f" … {len(text) - longest} more … "
    if longest < len(mark):
        return text[:longest]
    half = (longest - len(mark)) // 2
    return text[: longest - half - len(mark)] + mark + text[len(text) - half :]


def _size(value: Any, most: int, nodes: int) -> int:
    """Estimate the length of a value's ``repr``; stop above ``most`` characters or after ``nodes`` values."""
    stack, size = [value], 0
    while stack and size <= most and nodes > 0:
        nodes -= 1
        item = stack.pop()
        kind = type(item)
        if kind in (str, bytes, bytearray):
            size += len(item)
        elif kind is int:
            size += item.bit_length() // 3
        elif kind in (list, tuple, set, frozenset):
            size += 2 * len(item)
            stack.extend(item if len(item) <= nodes else ())
        elif kind is dict:
            size += 4 * len(item)
            if len(item) <= nodes:
                stack.extend(item.keys())
                stack.extend(item.values())
        size += 1
    return size if not stack else most + 1


def _short(longest: int) -> reprlib.Repr:
    small = reprlib.Repr()
    small.maxstring = small.maxother = small.maxlong = longest
    small.maxlist = small.maxtuple = small.maxset = small.maxfrozenset = small.maxdict = 100
    return small


def as_json(value: Any, most: int, nodes: int = _MAX_VALUES) -> Any:
    """Return a value as JSON, with tuples as lists.

    Raise ``ValueError`` if it cannot be written as JSON (such as NaN), or would have more than about ``most`` bytes or
    more than ``nodes`` values.
    """
    return json_within(value, [most, nodes])


def json_within(value: Any, budget: list[int]) -> Any:
    """Do the same as :func:`as_json` with a budget ``[bytes, values]``, and subtract the bytes and values used.

    Several values can share one budget in this way.
    """
    return _json(value, budget, 50)


def weight(text: str) -> int:
    """Estimate the number of bytes of a text as JSON: its length if it is printable ASCII, else by encoding it."""
    return len(text) if _is_ascii(text) and text.isprintable() else len(encoded(text))


def _is_ascii(text: str) -> bool:
    return text.isascii() if sys.version_info >= (3, 7) else max(text, default="") < "\x80"


def _json(value: Any, budget: list[int], depth: int) -> Any:
    kind = type(value)
    budget[0] -= weight(value) if kind is str else 1
    budget[1] -= 1
    if min(budget) < 0 or depth == 0:
        raise ValueError("the value is too large")
    if kind in (str, bool, type(None)):
        return value
    if kind is int and value.bit_length() < 1024:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple):
        return [_json(item, budget, depth - 1) for item in value]
    if kind is dict and all(type(key) is str for key in value):
        budget[0] -= sum(map(weight, value))
        return {key: _json(item, budget, depth - 1) for key, item in value.items()}
    raise ValueError(f"{type_name(value)} cannot be written as JSON")
