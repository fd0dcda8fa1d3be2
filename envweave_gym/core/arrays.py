"""Where values meet arrays: numbers read into a space, and what is no array kept out of the converters."""

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
_ARRAYS = ("__array__", "__array_interface__", "__dlpack__")
_adapted: set[str] = set()


def as_array(space: Box[Any] | MultiDiscrete[Any] | MultiBinary, value: Any) -> NDArray[Any]:
    """``value`` with the shape and dtype of ``space``, or ``ValueError`` where that would change it.

    Numbers stay what they are, down to the precision of a float dtype: nothing is cut off, wrapped around,
    broadcast, reshaped, or read out of text.
    """
    given = np.asarray(value)
    if given.dtype.kind not in "biuf" or given.shape != space.shape:
        raise ValueError(f"{shown(value)} is not an array of numbers of shape {space.shape}")
    with np.errstate(all="ignore"):
        array = given.astype(space.dtype)
    kept = np.isfinite(array) == np.isfinite(given) if array.dtype.kind == "f" else array == given
    if not np.all(kept):
        raise ValueError(f"{shown(value)} does not fit {array.dtype}")
    return array


def foreign_array(value: Any) -> NDArray[Any] | None:
    """An array of another library (jax, torch, PIL, …) as NumPy's, by ``__array__`` or DLPack.

    ``None`` of what is no array, or is not in the memory of this process.
    """
    if isinstance(value, type) or not any(hasattr(value, name) for name in _ARRAYS):
        return None
    for convert in (np.asarray, np.from_dlpack):
        try:
            array = convert(value)
        except (TypeError, ValueError, RuntimeError, AttributeError, BufferError):
            continue  # it is on a GPU, has a gradient, or knows the other way only
        if not array.dtype.hasobject:
            return array
    return None


def adapt_converters() -> None:
    """Let Gymnasium's ``NumpyToTorch``, ``ArrayConversion`` and their kin hand on what is no array as it is.

    They take a text apart for ever and do not know streams and faults. Importing them would bring the array
    libraries with it, so whichever of them somebody else has imported is adapted: call this in ``reset``.
    """
    for name in _CONVERTERS:
        if name in sys.modules and name not in _adapted:
            _adapted.add(name)
            _adapt(sys.modules[name])


def _adapt(module: ModuleType) -> None:
    for convert in list(vars(module).values()):
        if hasattr(convert, "dispatch") and str not in convert.registry:
            convert.register(np.ndarray, _unless_objects(convert.dispatch(np.ndarray)))
            convert.register(str, _as_it_is)
            convert.register(msgspec.Struct, _as_it_is)


def _as_it_is(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


def _unless_objects(convert: Callable[..., Any]) -> Callable[..., Any]:
    def converted(value: Any, *args: Any, **kwargs: Any) -> Any:
        return value if value.dtype.hasobject else convert(value, *args, **kwargs)

    return converted
