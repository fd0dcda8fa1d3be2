"""Streams of many environments that are built only when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LazyStreams:
    """The streams of a native vector environment: an object array whose items are built on demand.

    Building 1,024 streams a step would cost some fifty times the step itself, and a trainer looks at few.
    Indexing with an int builds one stream; everything else an array can do builds all of them, once. Copies
    and pickles are plain object arrays.
    """

    ndim, dtype = 1, np.dtype(object)

    def __init__(self, source: Callable[[int], Any], untrainable: NDArray[np.bool_]) -> None:
        """``source(i)`` gives the stream of row ``i``; ``untrainable`` marks rows that are no transition."""
        self.source, self.untrainable = source, untrainable
        self._built: NDArray[np.object_] | None = None

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """``np.ndarray``, as Gymnasium's wrappers ask for one; a true subclass would show its empty cells."""
        return np.ndarray

    @property
    def built(self) -> bool:
        """Whether all streams have been built, and may have been replaced since."""
        return self._built is not None

    def eager(self) -> NDArray[np.object_]:
        """The plain object array with every stream built."""
        if self._built is None:
            built = np.empty(len(self), dtype=object)
            for row in range(len(self)):
                built[row] = self.source(row)
            self._built = built  # all or nothing: another thread may be looking
        return self._built

    @property
    def shape(self) -> tuple[int]:
        """The number of environments, as a shape."""
        return self.untrainable.shape

    def __len__(self) -> int:
        return len(self.untrainable)

    def __getitem__(self, index: Any) -> Any:
        if self._built is None and isinstance(index, int | np.integer):
            return self.source(range(len(self))[index])
        return self.eager()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.eager()[index] = value

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.eager(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.object_]:
        return self.eager().astype(object if dtype is None else dtype)

    def __eq__(self, other: object) -> Any:
        return self.eager() == np.asarray(other)

    def __ne__(self, other: object) -> Any:
        return self.eager() != np.asarray(other)

    def __reduce__(self) -> Any:
        return self.eager().__reduce__()

    def __copy__(self) -> NDArray[np.object_]:
        return self.eager().copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> NDArray[np.object_]:
        return self.eager().copy()

    def __repr__(self) -> str:
        return f"LazyStreams({len(self)} streams)"
