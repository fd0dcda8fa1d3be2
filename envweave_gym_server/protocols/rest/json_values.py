"""Conversion of values to JSON for people and programs without msgpack, and of JSON to actions.

Arrays are nested lists, or ``{"dtype": …, "shape": …, "base64": …}`` on request; both are accepted as actions.
Sets are lists, dataclasses are objects, dates are in ISO 8601. Everything else is JSON as
:func:`envweave_gym.core.jsonable.jsonable` writes it: NaN is ``"nan"``.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from gymnasium.spaces import GraphInstance, Space
from numpy.typing import NDArray

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.json_members import JsonReader
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.stream import Stream
from envweave_gym.wire.values import dtype_of

Arrays = Literal["lists", "base64"]
"""The two JSON forms of arrays."""

_MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError)
_KEYS = {"dtype", "shape", "base64"}


# What an environment gives


def plain(value: Any, arrays: Arrays = "lists") -> Any:
    """Return ``value`` as plain JSON: streams and faults as objects, arrays as lists or in base64."""
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return jsonable(value)
    if isinstance(value, np.ndarray):
        return _plain_array(np.asarray(value), arrays)
    if isinstance(value, Stream):
        return {"requests": plain(value.requests, arrays), "events": plain(value.events, arrays)}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), arrays) for name in value.__struct_fields__}
    if isinstance(value, GraphInstance):
        return {name: plain(part, arrays) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {_key(key): plain(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, arrays) for item in value]
    if isinstance(value, set | frozenset):  # sorted, as the order of texts is another in each process
        return sorted((plain(item, arrays) for item in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    return jsonable(value)


def _key(key: Any) -> str:
    """Return the key of a mapping as a text."""
    return str(jsonable(key))


def _plain_array(array: NDArray[Any], arrays: Arrays) -> Any:
    if array.dtype.hasobject:
        return [plain(item, arrays) for item in array]
    if array.dtype.kind not in "biuf":
        return jsonable(array)
    if arrays == "base64":
        data = base64.b64encode(array.tobytes()).decode()
        return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": data}
    exact = array.dtype.kind != "f" or (array.dtype.itemsize <= 8 and bool(np.isfinite(array).all()))
    return array.tolist() if exact else jsonable(array)


# Actions


def read_json(name: str, space: Space[Any], value: Any) -> Any:
    """Return the element of ``space`` for the JSON ``value``; the environment checks whether it is in the space.

    Lists become arrays and tuples where the space has those. The object for a ``Dict`` must have exactly its
    keys. Raise ``InvalidAction`` if the value has another form.
    """
    try:
        return _reader.read(space, value)
    except _MISFITS as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InvalidAction(f"{name}: action {shown(value)} is not in {shown(space)}: {reason}") from None


class _Reader(JsonReader):
    """JSON reader that also accepts arrays in base64, and refuses unknown members of objects."""

    def array(self, value: Any) -> Any:
        """Return nested lists unchanged, and the array in an object with ``dtype``, ``shape`` and ``base64``."""
        if not isinstance(value, dict):
            return value
        if value.keys() != _KEYS or not all(type(one) is int for one in value["shape"]):
            raise ValueError("an array is a list, or an object with dtype, shape and base64")
        dtype, shape = dtype_of(str(value["dtype"])), value["shape"]
        try:
            data = base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"that is no base64: {error}") from None
        if (
            dtype.kind not in "biuf"
            or min(shape, default=0) < 0
            or math.prod(shape) * dtype.itemsize != len(data)
        ):
            raise ValueError(f"{len(data)} bytes are no {dtype} array of shape {tuple(shape)}")
        return np.frombuffer(data, dtype).reshape(shape)

    def members(self, value: Any, names: list[str]) -> dict[str, Any]:
        """Return an object that has the members ``names`` and no other."""
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise ValueError(f"it wants an object with {', '.join(names) or 'nothing'}")
        return value


_reader = _Reader()
