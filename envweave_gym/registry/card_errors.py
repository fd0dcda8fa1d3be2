"""The error for a card that is refused, in place of msgspec's; imported only for such a card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect as types

from envweave_gym.core.faults import InvalidArgument, nearest, shown

_FIELD = re.compile(r"`\$\.(\w+)")


def refusal(row: Any, card: type[msgspec.Struct], error: msgspec.ValidationError) -> InvalidArgument:
    """Return the exception for a ``row`` that msgspec cannot convert to a ``card``; it names one wrong field."""
    if isinstance(error.__cause__, InvalidArgument):  # raised by the constructor of the card
        return error.__cause__
    if not isinstance(row, Mapping):
        return InvalidArgument(f"{shown(row)} is no card; give an EnvCard, or a dict with its fields")
    name = f"card {shown(row['id'])}" if isinstance(row.get("id"), str) else "card"
    fields = {field.name: field for field in msgspec.structs.fields(card)}
    for key in row:
        if key not in fields:
            close = nearest(key, fields) if isinstance(key, str) else ""
            return InvalidArgument(f"{name}: {shown(key)} is no field{close}; there are {', '.join(fields)}")
    needed = [field.name for field in fields.values() if field.required]
    if missing := [one for one in needed if one not in row]:
        return InvalidArgument(f"{name} has no {missing[0]}; every card has {' and '.join(needed)}")
    found = _FIELD.search(str(error))
    if found is None:
        return InvalidArgument(f"{name}: {error}")
    field = fields[found[1]]
    allowed = _allowed(types.type_info(field.type), field.name)
    return InvalidArgument(f"{name}: {field.name}={shown(row[field.name])} is refused; give {allowed}")


def _allowed(kind: types.Type, field: str) -> str:
    """Return the values of a type in words, such as "an int of at least 1 or None"."""
    match kind:
        case types.UnionType(types=several):
            return " or ".join(_allowed(one, field) for one in several)
        case types.StrType(pattern=str()):
            return f"a string like {'namespace/Name-v0' if field in ('id', 'game') else 'module:attribute'!r}"
        case types.IntType(ge=least):
            return f"an int of at least {least}"
        case types.FloatType(gt=limit):
            return f"a number above {limit:g}"
        case _:
            return _WORDS[type(kind)]


_WORDS: dict[type[types.Type], str] = {
    types.StrType: "a string",
    types.BoolType: "True or False",
    types.NoneType: "None",
    types.DictType: "a dict with strings as keys",
    types.VarTupleType: "a tuple of strings",
}
