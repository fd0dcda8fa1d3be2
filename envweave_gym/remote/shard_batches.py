"""Splits batches of actions among servers, and joins the observations and infos that they return."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from envweave_gym.episode.vector_infos import StreamRows, VectorInfos


def part_of(space: Space[Any], batch: Any, rows: slice) -> Any:
    """Return the rows ``rows`` of a batch of elements of ``space``."""
    if isinstance(space, Dict):
        return {key: part_of(inner, batch[key], rows) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(part_of(inner, one, rows) for inner, one in zip(space.spaces, batch, strict=True))
    return batch[rows]


def rows_of(space: Space[Any], batch: Any, size: int) -> list[Any]:
    """Split a batch of elements of ``space`` into ``size`` rows, in the form that single environments return."""
    if isinstance(space, Dict):
        columns = {key: rows_of(inner, batch[key], size) for key, inner in space.spaces.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(size)]
    if isinstance(space, Tuple):
        parts = zip(space.spaces, batch, strict=True)
        return list(zip(*(rows_of(inner, one, size) for inner, one in parts), strict=True))
    as_it_is = isinstance(space, Discrete) or not isinstance(batch, np.ndarray)
    return [batch[row] if as_it_is else np.array(batch[row]) for row in range(size)]


def joined(space: Space[Any], batches: Sequence[Any]) -> Any:
    """Concatenate batches of elements of ``space``."""
    if len(batches) == 1:
        return batches[0]
    if isinstance(space, Dict):
        return {key: joined(inner, [one[key] for one in batches]) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        inner = enumerate(space.spaces)
        return tuple(joined(one, [batch[index] for batch in batches]) for index, one in inner)
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    return tuple(chain.from_iterable(batches))


def copied(batch: Any) -> Any:
    """Copy a batch and the arrays in it; other values are shared."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: copied(one) for key, one in batch.items()}
    return tuple(copied(one) for one in batch) if isinstance(batch, tuple) else batch


def batch_of(space: Space[Any], rows: Sequence[Any]) -> Any:
    """Stack rows, which are elements of ``space``, into a batch."""
    return concatenate(space, rows, create_empty_array(space, len(rows), fn=np.zeros))


def travels(value: Any) -> bool:
    """Return whether msgpack carries a value unchanged, so that the server can check it as an action."""
    kind = type(value)
    if kind in _TRAVELLING or isinstance(value, np.generic):
        return True
    if kind is np.ndarray:
        return not value.dtype.hasobject
    if kind is dict:
        return all(type(key) is str and travels(item) for key, item in value.items())
    return kind in (list, tuple) and all(travels(item) for item in value)


_TRAVELLING = (int, float, bool, str, bytes, type(None))


# Infos


class JoinedStreams:
    """Callable that finds the vector that a row of joined infos comes from, and returns the row's ``Stream``.

    The stream is built only when it is read: :class:`StreamRows` calls this, because building all of them is slow.
    """

    def __init__(self, parts: Sequence[StreamRows | None], sizes: Sequence[int]) -> None:
        self._parts, self._ends = parts, list(accumulate(sizes))

    def __call__(self, row: int) -> Any:
        """Return the stream of ``row``, counted through all vectors; ``None`` if its vector has no streams."""
        index = bisect_right(self._ends, row)
        part = self._parts[index]
        return None if part is None else part[row - (self._ends[index - 1] if index else 0)]


def merged(infos: Sequence[dict[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Join the infos of vectors with ``sizes`` rows: for each key an array of all rows.

    As in Gymnasium's vectors, the first row whose info has the key decides the dtype; rows without it are blank.
    """
    if len(infos) == 1:
        return infos[0]
    keys = dict.fromkeys(chain.from_iterable(infos))
    return VectorInfos({key: _column([one.get(key) for one in infos], sizes) for key in keys})


def _column(parts: list[Any], sizes: Sequence[int]) -> Any:
    known = next(part for part in parts if part is not None)
    if isinstance(known, dict):
        return merged([part or {} for part in parts], sizes)
    pairs = list(zip(parts, sizes, strict=True))
    if all(part is None or isinstance(part, StreamRows) for part in parts):
        masks = [np.zeros(size, np.bool_) if part is None else part.untrainable for part, size in pairs]
        return StreamRows(JoinedStreams(parts, sizes), np.concatenate(masks))
    known = np.asarray(known)
    columns = [_blank(known, size) if part is None else np.asarray(part) for part, size in pairs]
    return np.concatenate(columns).astype(known.dtype, copy=False)


def _blank(like: NDArray[Any], rows: int) -> NDArray[Any]:
    shape = (rows, *like.shape[1:])
    return np.full(shape, None, object) if like.dtype.hasobject else np.zeros(shape, like.dtype)
