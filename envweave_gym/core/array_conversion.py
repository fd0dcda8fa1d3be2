"""Converts values to NumPy arrays, and keeps streams and texts out of Gymnasium's array converters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
from gymnasium.spaces import Box, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from envweave_gym.core.faults import shown

_CONVERTERS = (
    "gymnasium.wrappers.array_conversion",
    "gymnasium.wrappers.numpy_to_torch",
    "gymnasium.wrappers.jax_to_numpy",
    "gymnasium.wrappers.jax_to_torch",
)
_ARRAY_PROTOCOLS = ("__array__", "__array_interface__", "__dlpack__")
_adapted: set[str] = set()


def as_array(space: Box[Any] | MultiDiscrete[Any] | MultiBinary, value: Any) -> NDArray[Any]:
    """Convert ``value`` to the shape and dtype of ``space``; raise ``ValueError`` if that changes the value.

    Only the precision of a float dtype may be lost: nothing is truncated, wrapped around, broadcast, reshaped
    or parsed from text.
    """
    given = np.asarray(value)
    # NumPy's astype() would parse texts and unpack objects, so only numbers and bools pass.
    if given.dtype.kind not in "biuf" or given.shape != space.shape:
        raise ValueError(f"{shown(value)} is not an array of numbers of shape {space.shape}")
    with np.errstate(all="ignore"):
        array = given.astype(space.dtype)
    # A float may lose precision, but must not become infinite.
    kept = np.isfinite(array) == np.isfinite(given) if array.dtype.kind == "f" else array == given
    if not np.all(kept):
        raise ValueError(f"{shown(value)} does not fit {array.dtype}")
    return array


def foreign_array(value: Any) -> NDArray[Any] | None:
    """Convert an array of another library (jax, torch, PIL, …) by ``__array__`` or DLPack.

    Return ``None`` if the value is no array, or cannot be read from the memory of this process.
    """
    if isinstance(value, type) or not any(hasattr(value, name) for name in _ARRAY_PROTOCOLS):
        return None
    for convert in (np.asarray, np.from_dlpack):
        try:
            array = convert(value)
        except (TypeError, ValueError, RuntimeError, AttributeError, BufferError):
            continue  # it is on a GPU, has a gradient, or supports only the other protocol
        if not array.dtype.hasobject:
            return array
    return None


def adapt_converters() -> None:
    """Make Gymnasium's array converters (``NumpyToTorch``, …) return values that are no arrays unchanged.

    Without this they recurse endlessly into texts and fail on streams and faults. Importing them would import
    jax and torch, so only those that are imported already are adapted: call this in every ``reset``.
    """
    for name in _CONVERTERS:
        if name in sys.modules and name not in _adapted:
            _adapted.add(name)
            _adapt(sys.modules[name])


def _adapt(module: ModuleType) -> None:
    for convert in list(vars(module).values()):
        # Gymnasium's converters are functools.singledispatch functions.
        if hasattr(convert, "dispatch") and str not in convert.registry:
            convert.register(np.ndarray, _unless_objects(convert.dispatch(np.ndarray)))
            convert.register(str, _unchanged)
            convert.register(msgspec.Struct, _unchanged)


def _unchanged(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def _unless_objects(convert: Callable[..., Any]) -> Callable[..., Any]:
    def converted(value: Any, *args: Any, **kwargs: Any) -> Any:
        return value if value.dtype.hasobject else convert(value, *args, **kwargs)

    return converted
