"""Conversion of JSON values to the types of a space: lists to arrays and tuples, objects to dicts and graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    GraphInstance,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Tuple,
)
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from envweave_gym.core.array_conversion import as_array
from envweave_gym.core.faults import shown
from envweave_gym.core.jsonable import jsonable


class JsonReader:
    """Converts JSON values to the types of a space; the caller checks whether the result is in the space.

    A value of another form raises ``ValueError``, or another exception of the conversions.
    """

    def read(self, space: Space[Any], value: Any) -> Any:
        """Return ``value`` in the types of ``space``."""
        match space:
            case Discrete():
                return _integer(value, int(space.start), int(space.n))
            case Box() | MultiDiscrete() | MultiBinary():
                return as_array(space, self.array(value))
            case Dict():
                return {key: self.read(inner, part) for key, inner, part in self._parts(space, value)}
            case Tuple():
                items = zip(space.spaces, self._items(value), strict=True)
                return tuple(self.read(inner, item) for inner, item in items)
            case Sequence():
                if space.stack:
                    return self._stacked(space.feature_space, value)
                return tuple(self.read(space.feature_space, item) for item in self._items(value))
            case OneOf():
                chosen, item = self._items(value)
                index = _integer(chosen, 0, len(space.spaces))
                return np.int64(index), self.read(space.spaces[index], item)
            case Graph():
                return self._graph(space, self.members(value, ["nodes", "edges", "edge_links"]))
            case _:
                return value

    def array(self, value: Any) -> Any:
        """Return the nested lists of an array, or the array that another form of it describes."""
        return value

    def members(self, value: Any, names: list[str]) -> dict[str, Any]:
        """Return an object that has the members ``names``; unknown members are ignored."""
        if not isinstance(value, dict) or not value.keys() >= set(names):
            raise ValueError(f"expected an object with {', '.join(names)}")
        return value

    def _parts(self, space: Dict, value: Any) -> list[tuple[Any, Space[Any], Any]]:
        """Return each key of ``space``, with its space and its member of the object."""
        names = {key: str(jsonable(key)) for key in space.spaces}
        members = self.members(value, list(names.values()))
        return [(key, inner, members[names[key]]) for key, inner in space.spaces.items()]

    def _items(self, value: Any) -> list[Any]:
        """Return the items of a list, or the rows of an array in another form."""
        items = self.array(value)
        items = items.tolist() if isinstance(items, np.ndarray) else items
        if not isinstance(items, list):
            raise ValueError(f"{shown(value)} is no list")
        return items

    def _stacked(self, space: Space[Any], value: Any) -> Any:
        """Return the elements of a stacking ``Sequence``; those of a ``Dict`` or ``Tuple`` are stacked by part."""
        if isinstance(space, Dict):
            return {key: self._stacked(inner, part) for key, inner, part in self._parts(space, value)}
        if isinstance(space, Tuple):
            parts = zip(space.spaces, self._items(value), strict=True)
            return tuple(self._stacked(inner, part) for inner, part in parts)
        items = [self.read(space, item) for item in self._items(value)]
        return concatenate(space, items, create_empty_array(space, len(items)))

    def _graph(self, space: Graph, members: dict[str, Any]) -> GraphInstance:
        edges, links = members["edges"], members["edge_links"]
        return GraphInstance(
            self._rows(space.node_space, members["nodes"]),
            None if space.edge_space is None or edges is None else self._rows(space.edge_space, edges),
            None if links is None else np.asarray(self._items(links), dtype=np.int32).reshape(-1, 2),
        )

    def _rows(self, space: Box[Any] | Discrete, items: Any) -> NDArray[Any]:
        rows = [self.read(space, item) for item in self._items(items)]
        return np.asarray(rows, dtype=space.dtype).reshape(len(rows), *(space.shape or ()))


def _integer(value: Any, start: int, count: int) -> int:
    # Not isinstance(), as JSON's true would be an integer.
    if type(value) is not int or not start <= value < start + count:
        raise ValueError(f"{shown(value)} is no integer from {start} to {start + count - 1}")
    return value
