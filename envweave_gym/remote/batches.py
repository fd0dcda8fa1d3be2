"""Batches of rows, and infos of vectors: taken apart for many servers, and put together again."""

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
    """Some rows of a batch; ``space`` is that of one row."""
    if isinstance(space, Dict):
        return {key: part_of(inner, batch[key], rows) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(part_of(inner, one, rows) for inner, one in zip(space.spaces, batch, strict=True))
    return batch[rows]


def rows_of(space: Space[Any], batch: Any, size: int) -> list[Any]:
    """The rows of a batch as single environments have them."""
    if isinstance(space, Dict):
        columns = {key: rows_of(inner, batch[key], size) for key, inner in space.spaces.items()}
        return [{key: column[row] for key, column in columns.items()} for row in range(size)]
    if isinstance(space, Tuple):
        parts = zip(space.spaces, batch, strict=True)
        return list(zip(*(rows_of(inner, one, size) for inner, one in parts), strict=True))
    as_it_is = isinstance(space, Discrete) or not isinstance(batch, np.ndarray)
    return [batch[row] if as_it_is else np.array(batch[row]) for row in range(size)]


def joined(space: Space[Any], batches: Sequence[Any]) -> Any:
    """The batches one after the other, as one."""
    if len(batches) == 1:
        return batches[0]
    if isinstance(space, Dict):
        return {key: joined(inner, [one[key] for one in batches]) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        inner = enumerate(space.spaces)
        return tuple(joined(one, [batch[place] for batch in batches]) for place, one in inner)
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    return tuple(chain.from_iterable(batches))


def kept(batch: Any) -> Any:
    """A batch with arrays of its own, which nobody else changes."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: kept(one) for key, one in batch.items()}
    return tuple(kept(one) for one in batch) if isinstance(batch, tuple) else batch


def batch_of(space: Space[Any], rows: Sequence[Any]) -> Any:
    """Rows as a batch."""
    return concatenate(space, rows, create_empty_array(space, len(rows), fn=np.zeros))


def travels(value: Any) -> bool:
    """Whether a server sees this value as it is, so that it can judge whether it is an action."""
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
    """The streams of vectors one after the other."""

    def __init__(self, parts: Sequence[StreamRows | None], sizes: Sequence[int]) -> None:
        self._parts, self._ends = parts, list(accumulate(sizes))

    def __call__(self, row: int) -> Any:
        """The stream of a row."""
        place = bisect_right(self._ends, row)
        part = self._parts[place]
        return None if part is None else part[row - (self._ends[place - 1] if place else 0)]


def merged(infos: Sequence[dict[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Join the infos of vectors to those of one; ``sizes`` are the numbers of their rows.

    As in Gymnasium's vectors the first row that says something decides its dtype; rows that do not are blank.
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
