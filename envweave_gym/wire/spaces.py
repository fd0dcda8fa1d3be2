"""Spaces as data, and back: what comes of it is equal to what was sent."""

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

from envweave_gym.faults import NotAvailable, shown
from envweave_gym.spaces import UNBOUNDED, Chat, Json, Unicode
from envweave_gym.wire.values import dtype_of

Data = dict[str, Any]


def space_to_data(space: Space[Any]) -> Data:
    """A space as a dict with ``type`` and what its constructor takes; arrays in it stay arrays."""
    for kind in type(space).__mro__:
        if kind in _TO_DATA:
            return {"type": kind.__name__, **_TO_DATA[kind](space)}
    kinds = ", ".join(kind.__name__ for kind in _TO_DATA)
    raise NotAvailable(f"the space {shown(space)} does not travel; those that do are {kinds}")


def space_from_data(data: Data) -> Space[Any]:
    """The space that :func:`space_to_data` wrote down."""
    kinds = {kind.__name__: kind for kind in _TO_DATA}
    kind = kinds.get(data.get("type", ""))
    if kind is None:
        raise NotAvailable(
            f"there is no space of type {shown(data.get('type'))}; there are {', '.join(kinds)}"
        )
    return _FROM_DATA[kind](data)


def _uniform(bound: np.ndarray[Any, Any]) -> Any:
    """One number where a bound is the same all over, so that an image space is not as long as an image."""
    first = bound.flat[0] if bound.size else bound.dtype.type(0)
    return first if bound.size and (bound == first).all() else bound


def _box(space: Box[Any]) -> Data:
    low, high = _uniform(space.low), _uniform(space.high)
    return {"low": low, "high": high, "shape": list(space.shape), "dtype": space.dtype.str}


def _read_box(data: Data) -> Box[Any]:
    low, high = data["low"], data["high"]
    if dtype_of(data["dtype"]) == np.bool_:  # Box has such bounds and takes none
        low, high = low.astype(np.int8), high.astype(np.int8)
    return Box(low, high, tuple(data["shape"]), dtype_of(data["dtype"]))


def _read_discrete(data: Data) -> Discrete:
    dtype = dtype_of(data["dtype"])
    if dtype == np.int64:
        return Discrete(data["n"], start=data["start"])
    return Discrete(data["n"], start=data["start"], dtype=dtype)


def _length(space: Unicode) -> int | None:
    return space.max_length if space.max_length < UNBOUNDED else None


def _inner(spaces: Any) -> list[Data]:
    return [space_to_data(one) for one in spaces]


def _outer(data: list[Data]) -> list[Space[Any]]:
    return [space_from_data(one) for one in data]


def _optional(space: Space[Any] | None) -> Data | None:
    return None if space is None else space_to_data(space)


def _read_optional(data: Data | None) -> Any:
    return None if data is None else space_from_data(data)


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

_FROM_DATA: dict[type, Callable[[Data], Space[Any]]] = {
    Box: _read_box,
    Discrete: _read_discrete,
    MultiDiscrete: lambda d: MultiDiscrete(d["nvec"], dtype=dtype_of(d["dtype"]), start=d["start"]),
    MultiBinary: lambda d: MultiBinary(d["n"]),
    Chat: lambda d: Chat(d["max_length"]),
    Json: lambda d: Json(d["max_length"]),
    Unicode: lambda d: Unicode(d["max_length"], min_length=d["min_length"]),
    Text: lambda d: Text(d["max_length"], min_length=d["min_length"], charset=d["charset"]),
    Dict: lambda d: Dict(OrderedDict(zip(d["names"], _outer(d["spaces"]), strict=True))),
    Tuple: lambda d: Tuple(_outer(d["spaces"])),
    OneOf: lambda d: OneOf(_outer(d["spaces"])),
    Sequence: lambda d: Sequence(space_from_data(d["space"]), stack=d["stack"]),
    Graph: lambda d: Graph(space_from_data(d["node"]), _read_optional(d["edge"])),
}
