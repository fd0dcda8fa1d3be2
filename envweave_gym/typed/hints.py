"""Reads type hints of typed environments: models, annotations, enumerations, and names for errors."""

from __future__ import annotations

import enum
import types
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from gymnasium.spaces import Space

from envweave_gym.core.faults import InvalidArgument

UNIONS = (Union, types.UnionType)


def is_model(hint: Any) -> bool:
    """Return whether ``hint`` is a model: a dataclass or a ``msgspec.Struct`` class."""
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, msgspec.Struct))


def fields_of(model: type) -> dict[str, Any]:
    """Return the fields that the model's constructor takes, with their types."""
    try:
        hints = get_type_hints(model, include_extras=True)
    except NameError as error:
        raise InvalidArgument(f"{model.__name__}: {error}; define its types beside it") from None
    if issubclass(model, msgspec.Struct):
        return {name: hints[name] for name in model.__struct_fields__}
    return {field.name: hints[field.name] for field in fields(model) if field.init}


def split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split ``Annotated[type, …]`` into the type and its annotations; other hints have none."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def chosen(extras: tuple[Any, ...]) -> list[Space[Any]]:
    """Return the Gymnasium spaces among the annotations of a field."""
    return [extra for extra in extras if isinstance(extra, Space)]


def bounds_in(extras: tuple[Any, ...]) -> dict[str, Any]:
    """Return the bounds of all ``msgspec.Meta`` among the annotations, by name."""
    names = ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of", "pattern")
    metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
    bounds = {
        name: getattr(meta, name) for meta in metas for name in names if getattr(meta, name) is not None
    }
    for name in bounds.keys() & {"multiple_of", "pattern"}:
        raise InvalidArgument(f"no space expresses msgspec.Meta({name}=…); check it in __post_init__ instead")
    return bounds


def choices(base: Any) -> list[Any]:
    """Return the values of a bool, Literal, Enum or union of these, in order; an empty list for other types."""
    if base is bool:
        return [False, True]
    if base is types.NoneType:
        return [None]
    if get_origin(base) is Literal:
        return list(get_args(base))
    if isinstance(base, type) and issubclass(base, enum.Enum) and not issubclass(base, enum.Flag):
        return list(base)
    if get_origin(base) in UNIONS:
        arms = [choices(arm) for arm in get_args(base)]
        return [value for arm in arms for value in arm] if all(arms) else []
    return []


def is_container(base: Any) -> bool:
    """Return whether the values of a type have no fixed shape, like lists, so that they are encoded as JSON."""
    return (get_origin(base) or base) in (list, dict, tuple, *UNIONS)


def name_of(hint: Any) -> str:
    """Return the name of a type for errors."""
    is_class = isinstance(hint, type) and not get_args(hint)
    return hint.__qualname__ if is_class else str(hint).replace("typing.", "")
