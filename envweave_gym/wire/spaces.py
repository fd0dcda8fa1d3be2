"""Conversion of spaces to data and back; the space that arrives equals the one that was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.core.spaces import UNBOUNDED, Chat, Json, Unicode
from envweave_gym.wire.foreign_spaces import foreign_to_data, is_as, opaque
from envweave_gym.wire.values import dtype_of

Data = dict[str, Any]
FOREIGN = "Foreign"
"""The ``type`` of a space whose class is neither Gymnasium's nor ours."""


def space_to_data(space: Space[Any]) -> Data:
    """Convert a space to a dict with ``type`` and its constructor's arguments; arrays stay arrays.

    A space of a class that is unknown here gets the type ``Foreign`` (:mod:`envweave_gym.wire.foreign_spaces`).
    """
    kind = next((kind for kind in type(space).__mro__ if kind in _TO_DATA), None)
    base = None if kind is None else {"type": kind.__name__, **_TO_DATA[kind](space)}
    if kind is not None and base is not None and is_as(space, kind):
        return base
    return {"type": FOREIGN, **foreign_to_data(space, base, space_to_data)}


Path = tuple[int, ...]
"""Path to a space inside another: indices into :func:`parts_of`, the outermost first."""
Unknown = Callable[[Data, Path], Space[Any]]
"""Function that returns a replacement for a space of an unknown class, from its data and its path."""


def base_of(data: Data, unknown: Unknown | None = None, path: Path = ()) -> Space[Any] | None:
    """Return a foreign space as a space of its nearest known base class; ``None`` if no base class is known.

    ``unknown`` and ``path`` are those of :func:`space_from_data`.
    """
    return None if data["base"] is None else space_from_data(data["base"], unknown, path)


def space_from_data(data: Data, unknown: Unknown | None = None, path: Path = ()) -> Space[Any]:
    """Return the space that :func:`space_to_data` converted to ``data``.

    ``unknown`` returns the replacement of a foreign space, by default an opaque space. ``path`` leads to this
    space inside the outermost one.
    """
    if data.get("type") == FOREIGN:
        return opaque(data, base_of(data, unknown, path)) if unknown is None else unknown(data, path)
    kinds = {kind.__name__: kind for kind in _TO_DATA}
    kind = kinds.get(data.get("type", ""))
    if kind is None:
        raise NotAvailable(
            f"there is no space of type {shown(data.get('type'))}; there are {', '.join(kinds)}"
        )

    def inner(part: Data, index: int) -> Space[Any]:
        return space_from_data(part, unknown, (*path, index))

    return _FROM_DATA[kind](data, inner)


def parts_of(space: Space[Any]) -> list[Space[Any]]:
    """Return the spaces inside a space, in the order in which they are sent."""
    match space:
        case Dict():
            return list(space.spaces.values())
        case Tuple() | OneOf():
            return list(space.spaces)
        case Sequence():
            return [space.feature_space]
        case Graph():
            return [space.node_space, *([] if space.edge_space is None else [space.edge_space])]
        case _:
            return []


def _uniform(bound: np.ndarray[Any, Any]) -> Any:
    """Return a single number if all elements of a bound are equal, so that image spaces are sent without arrays."""
    first = bound.flat[0] if bound.size else bound.dtype.type(0)
    return first if bound.size and (bound == first).all() else bound


def _box(space: Box[Any]) -> Data:
    low, high = _uniform(space.low), _uniform(space.high)
    return {"low": low, "high": high, "shape": list(space.shape), "dtype": space.dtype.str}


_Inner = Callable[[Data, int], Space[Any]]
"""Function that converts the part of a space at an index, from its data."""


def _read_box(data: Data, inner: _Inner) -> Box[Any]:
    low, high = data["low"], data["high"]
    if dtype_of(data["dtype"]) == np.bool_:  # Box has such bounds and takes none
        low, high = low.astype(np.int8), high.astype(np.int8)
    return Box(low, high, tuple(data["shape"]), dtype_of(data["dtype"]))


def _read_discrete(data: Data, inner: _Inner) -> Discrete:
    dtype = dtype_of(data["dtype"])
    if dtype == np.int64:
        return Discrete(data["n"], start=data["start"])
    return Discrete(data["n"], start=data["start"], dtype=dtype)


def _length(space: Unicode) -> int | None:
    return space.max_length if space.max_length < UNBOUNDED else None


def _inner(spaces: Any) -> list[Data]:
    return [space_to_data(one) for one in spaces]


def _outer(data: list[Data], inner: _Inner) -> list[Space[Any]]:
    return [inner(one, index) for index, one in enumerate(data)]


def _optional(space: Space[Any] | None) -> Data | None:
    return None if space is None else space_to_data(space)


def _read_graph(data: Data, inner: _Inner) -> Graph:
    node: Any = inner(data["node"], 0)
    edge: Any = None if data["edge"] is None else inner(data["edge"], 1)
    return Graph(node, edge)


_TO_DATA: dict[type, Callable[[Any], Data]] = {
    Box: _box,
    Discrete: lambda s: {"n": int(s.n), "start": int(s.start), "dtype": s.dtype.str},
    MultiDiscrete: lambda s: {"nvec": s.nvec, "start": s.start, "dtype": s.dtype.str},
    MultiBinary: lambda s: {"n": s.n if isinstance(s.n, int) else [int(one) for one in s.n]},
    Chat: lambda s: {"max_length": _length(s)},
    Json: lambda s: {"max_length": _length(s)},
    Unicode: lambda s: {"max_length": _length(s), "min_length": s.min_length},
    Text: lambda s: {"max_length": s.max_length, "min_length": s.min_length, "charset": s.characters},
    Dict: lambda s: {"names": list(s.spaces), "spaces": _inner(s.spaces.values())},
    Tuple: lambda s: {"spaces": _inner(s.spaces)},
    OneOf: lambda s: {"spaces": _inner(s.spaces)},
    Sequence: lambda s: {"space": space_to_data(s.feature_space), "stack": s.stack},
    Graph: lambda s: {"node": space_to_data(s.node_space), "edge": _optional(s.edge_space)},
}

_FROM_DATA: dict[type, Callable[[Data, _Inner], Space[Any]]] = {
    Box: _read_box,
    Discrete: _read_discrete,
    MultiDiscrete: lambda d, _: MultiDiscrete(d["nvec"], dtype=dtype_of(d["dtype"]), start=d["start"]),
    MultiBinary: lambda d, _: MultiBinary(d["n"]),
    Chat: lambda d, _: Chat(d["max_length"]),
    Json: lambda d, _: Json(d["max_length"]),
    Unicode: lambda d, _: Unicode(d["max_length"], min_length=d["min_length"]),
    Text: lambda d, _: Text(d["max_length"], min_length=d["min_length"], charset=d["charset"]),
    Dict: lambda d, inner: Dict(OrderedDict(zip(d["names"], _outer(d["spaces"], inner), strict=True))),
    Tuple: lambda d, inner: Tuple(_outer(d["spaces"], inner)),
    OneOf: lambda d, inner: OneOf(_outer(d["spaces"], inner)),
    Sequence: lambda d, inner: Sequence(inner(d["space"], 0), stack=d["stack"]),
    Graph: _read_graph,
}
