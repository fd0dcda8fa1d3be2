"""Infos of a vector whose streams are built on demand.

Building the streams of 1,024 rows at every step would take as long as fifty steps.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

FINAL_KEYS = ("final_obs", "_final_obs", "final_info", "_final_info")
"""Keys of infos that describe episodes which ended, and whose rows were reset, in the same step."""


class StreamRows(Sequence[Any]):
    """The streams of a vector's rows, as a read-only sequence that builds a stream when it is read.

    An int index builds one stream; iteration, other indices and NumPy build all of them. Copies and pickles
    are plain object arrays.
    """

    __slots__ = ("build", "untrainable")

    def __init__(self, build: Callable[[int], Any], untrainable: NDArray[np.bool_]) -> None:
        """Store ``build(row)``, which returns a row's stream, and the mask of rows that made no transition."""
        self.build, self.untrainable = build, untrainable

    def __len__(self) -> int:
        return len(self.untrainable)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            return self.build(range(len(self))[index])  # the range checks the index and takes negative ones
        return np.asarray(self)[index]

    def __iter__(self) -> Iterator[Any]:
        return map(self.build, range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = np.empty(len(self), object)
        for row, stream in enumerate(self):
            array[row] = stream
        return array if dtype is None else array.astype(dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence | np.ndarray) or len(other) != len(self):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType] - streams hold dictionaries

    def __reduce__(self) -> Any:
        return np.asarray(self).__reduce__()

    def __repr__(self) -> str:
        return f"StreamRows({len(self)} streams)"


class VectorInfos(dict[str, Any]):
    """The infos of a vector: a dict whose :meth:`items` have object arrays in place of :class:`StreamRows`.

    Gymnasium's ``DictInfoToList`` iterates over items and accepts only arrays and dicts. Copies and pickles
    have the arrays too.
    """

    def items(self) -> ItemsView[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the keys and values, with all streams built."""
        return {key: _built(value) for key, value in super().items()}.items()

    def values(self) -> ValuesView[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the values, with all streams built."""
        return dict(self.items()).values()

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)


def _built(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, StreamRows) else value


def infos_of_rows(rows: Sequence[dict[str, Any] | None]) -> VectorInfos:
    """Merge the infos of rows into one dict as Gymnasium's vectors do; ``None`` stands for an empty info."""
    columns = _columns_of(rows)
    if columns is not None:
        return columns
    infos, gathers = VectorInfos(), VectorEnv[Any, Any, Any]()
    gathers.num_envs = len(rows)
    for row, info in enumerate(rows):
        gathers._add_info(infos, info or {}, row)  # Gymnasium's own merge, which adds the masks
    return infos


class _Missing:
    """The type of the value of a key that an info does not have."""


_MISSING = _Missing()


def _columns_of(rows: Sequence[dict[str, Any] | None]) -> VectorInfos | None:
    """Merge infos that have the same keys, with values of the same types, by column; else return ``None``.

    The result is that of Gymnasium's merge, which would take a third of the time of a step.
    """
    if not rows or None in rows or len(set(map(len, whole := cast("Sequence[dict[str, Any]]", rows)))) > 1:
        return None
    infos = VectorInfos()
    for key in whole[0]:
        column = [info.get(key, _MISSING) for info in whole]
        kind = type(column[0])
        # A key like "_stream" could be the mask of another key; "final_obs" has a rule of its own.
        is_plain = not issubclass(kind, dict | np.ndarray) and not str(key).startswith(("_", "final_obs"))
        if not is_plain or set(map(type, column)) != {kind}:
            return None
        is_number = kind in (int, float, bool) or issubclass(kind, np.number)
        infos[key] = np.fromiter(column, kind if is_number else object, len(rows))
        infos[f"_{key}"] = np.ones(len(rows), np.bool_)
    return infos


def rows_of_infos(infos: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    """Split the infos of a vector into one dict for each row, without the keys in :data:`FINAL_KEYS`."""
    split: list[dict[str, Any]] = [{} for _ in range(rows)]
    for key, column in infos.items():
        known = infos.get(f"_{key}")
        if key in FINAL_KEYS or known is None:
            continue
        values = rows_of_infos(column, rows) if isinstance(column, dict) else column
        for row in np.flatnonzero(known).tolist():
            value = values[row]
            split[row][key] = bool(value) if isinstance(value, np.bool_) else value
    return split


def writeable_streams(infos: dict[str, Any]) -> None:
    """Replace lazy streams in place by object arrays, which ``VectorEnv._add_info`` can write to."""
    for key in ("stream", "final_info"):
        value = infos.get(key)
        if isinstance(value, dict):
            writeable_streams(value)
        elif isinstance(value, StreamRows):
            infos[key] = np.asarray(value)
