"""Values as msgpack with extensions for what it lacks, in the form of ``envweave_gym/wire/values.py``.

Observations, rewards and spaces are sent exactly or refused. In infos, an object that cannot be sent becomes a text.
"""

from __future__ import annotations

import dataclasses
import datetime as dates
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Callable

import msgspec
from msgspec.msgpack import Ext

np: Any = None
with suppress(ImportError):  # a suite without arrays
    import numpy as np

ARRAY, SCALAR, TUPLE, OBJECTS, _STREAM, _FAULT, BIG_INT, GRAPH, _STREAMS, _NATIVE, TEXT, PAIRS = range(1, 13)
_RESULT, SET, COMPLEX, MOMENT, RECORD = range(13, 18)
_KINDS = "biufcSUmM"
_ANY_TEXT = ("utf-16-le", "surrogatepass")
_MAX_BITS = 1 << 12
_MIN_INT, _END_OF_INTS = -(1 << 63), 1 << 64
_MAX_DEPTH = 60
_MAX_CONTAINERS = 100_000
"""Limit of lists, dicts and the like in one value of an info: a graph of shared objects may stand for millions."""
_MAX_TEXT_CHARS = 10_000
_AS_THEY_ARE = frozenset((float, bool, bytes, type(None)))
"""Types whose values msgspec encodes."""
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


class NotEncodable(TypeError):
    """Error if a value cannot be sent."""


class Packer:
    """Conversion of one value to what msgspec encodes; ``exact`` refuses what :func:`encode_info` makes a text."""

    def __init__(self, exact: bool) -> None:
        self._exact, self._containers = exact, 0

    def pack(self, value: Any, depth: int = 0) -> Any:
        """Convert a value to what msgspec encodes; raise ``NotEncodable`` if it cannot be sent."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is str:
            return _text(value)
        if kind is int:
            return self._int(value)
        if kind in _SCALAR_HEADERS:
            return Ext(SCALAR, _SCALAR_HEADERS[kind] + value.tobytes())
        if np is not None:
            if kind is np.ndarray and (header := _headers.get((value.dtype, value.shape))) is not None:
                return Ext(ARRAY, header + value.tobytes())
            if isinstance(value, np.ndarray):
                return self._container(value, depth) if value.dtype.hasobject else self._array(value)
            if isinstance(value, np.generic):
                return self._scalar(value)
        return self._container(value, depth)

    def _int(self, value: int) -> Any:
        if _MIN_INT <= value < _END_OF_INTS:
            return value
        if value.bit_length() > _MAX_BITS:
            return self._refuse(value, f"an integer of more than {_MAX_BITS} bits")
        return Ext(BIG_INT, hex(value).encode())

    def _array(self, value: Any) -> Any:
        if value.dtype.names is None and np.ma.is_masked(value):
            return self._refuse(value, "masked elements")
        if value.dtype.kind not in _KINDS or (
            value.dtype.kind in "fc" and value.dtype.itemsize in (12, 16, 32)
        ):
            value = self._standard(value)
            if not isinstance(value, np.ndarray):
                return value
        if value.dtype.itemsize == 0:
            value = value.astype(value.dtype.kind + "1")
        value = np.asarray(value)
        return Ext(ARRAY, _header(value.dtype, value.shape) + value.tobytes())

    def _standard(self, value: Any) -> Any:
        """Convert an array of a dtype that the peer's NumPy may lack (bfloat16, long double) to one that holds it."""
        if value.dtype.kind == "c":
            return value if value.dtype.itemsize == 16 else value.astype(np.complex128)
        if value.dtype.kind == "f":
            return value.astype(np.float64)
        if value.dtype.names is not None or value.dtype.type is np.void:
            return self._refuse(value, "a structured dtype")
        narrow = value.astype(np.float32)
        whole = narrow.size and (narrow == narrow.astype(np.int64)).all() and "int" in str(value.dtype)
        return narrow.astype(np.int8) if whole else narrow

    def _scalar(self, value: Any) -> Any:
        kind, itemsize = value.dtype.kind, value.dtype.itemsize
        if kind not in _KINDS or (kind == "f" and itemsize > 8) or (kind == "c" and itemsize > 16):
            packed = self._standard(np.asarray(value))
            return self._scalar(packed[()]) if isinstance(packed, np.ndarray) else packed
        data = value.tobytes() if itemsize else b""
        return Ext(SCALAR, _header(value.dtype, ()) + data)

    def _container(self, value: Any, depth: int) -> Any:
        self._containers += 1
        if depth > _MAX_DEPTH or self._containers > _MAX_CONTAINERS:
            return self._refuse(value, "too many or too deep parts, or a cycle")
        kind = type(value)
        if kind is list:
            return [self.pack(item, depth + 1) for item in value]
        if kind is tuple:
            return Ext(TUPLE, _encode([self.pack(item, depth + 1) for item in value]))
        if kind is dict:
            return self._mapping(value, depth)
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, depth)
            return self._rare(value, depth)
        except NotEncodable:
            raise
        except Exception as error:  # noqa: BLE001 - foreign objects may raise anything when they are read
            return self._refuse(value, f"{type(error).__name__}: {error}")

    def _mapping(self, value: Any, depth: int) -> Any:
        if all(map(_is_plain_key, value)):
            return {key: self.pack(item, depth + 1) for key, item in value.items()}
        pairs = [[self.pack(key, depth + 1), self.pack(item, depth + 1)] for key, item in value.items()]
        return Ext(PAIRS, _encode(pairs))

    def _rare(self, value: Any, depth: int) -> Any:
        if np is not None and isinstance(value, np.ndarray):  # of objects
            items = [self.pack(item, depth + 1) for item in value.ravel().tolist()]
            return Ext(OBJECTS, _encode([list(value.shape), items]))
        if isinstance(value, Enum):
            return self._record("enum", value, [getattr(value, "name", None)], [value.value], depth)
        if isinstance(value, tuple):
            return self._tuple(value, depth)
        if isinstance(value, (list, set, frozenset)):
            items = [self.pack(item, depth + 1) for item in value]
            return (
                items if isinstance(value, list) else Ext(SET, _encode([isinstance(value, frozenset), items]))
            )
        if isinstance(value, str):
            return self.pack(str.__str__(value), depth + 1)
        plain: Any
        for plain in (float, int, bytes):
            if isinstance(value, plain):
                return self.pack(plain(value), depth + 1)
        if isinstance(value, complex):
            return Ext(COMPLEX, _encode([value.real, value.imag]))
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return self._record("dataclass", value, names, [getattr(value, name) for name in names], depth)
        if isinstance(value, (dates.date, dates.time)):
            base: Any = next(
                kind for kind in (dates.datetime, dates.date, dates.time) if isinstance(value, kind)
            )
            return Ext(MOMENT, _encode([base.__name__, base.isoformat(value)]))
        if isinstance(value, dates.timedelta):
            return Ext(MOMENT, _encode(["timedelta", [value.days, value.seconds, value.microseconds]]))
        array = _foreign_array(value)
        if array is None:
            return self._refuse(value, "")
        return self.pack(array[()] if array.ndim == 0 else array, depth + 1)

    def _tuple(self, value: Any, depth: int) -> Any:
        items = [self.pack(item, depth + 1) for item in value]
        names = getattr(value, "_fields", None)
        if type(value).__name__ == "GraphInstance" and len(items) == 3:
            return Ext(GRAPH, _encode(items))
        if isinstance(names, tuple) and len(names) == len(items):
            return self._record("tuple", value, list(names), list(value), depth)
        return Ext(TUPLE, _encode(items))

    def _record(self, kind: str, value: Any, names: Any, fields: Any, depth: int) -> Any:
        packed = [self.pack(one, depth + 1) for one in fields]
        return Ext(RECORD, _encode([kind, type(value).__module__, type(value).__qualname__, names, packed]))

    def _refuse(self, value: Any, why: str) -> Any:
        if self._exact:
            because = f" ({why})" if why else ""
            raise NotEncodable(
                f"{shown(value)[:80]} of type {type(value).__name__} cannot be sent to another process{because}"
            )
        return _text(shown(value)[:_MAX_TEXT_CHARS])


def _text(value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates
        return Ext(TEXT, value.encode(*_ANY_TEXT))
    return value


def shown(value: Any) -> str:
    """Return the ``repr`` of a value without memory addresses, or its type if its ``repr`` raises."""
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):  # whose repr may be longer than memory
        return f"<{type(value).__name__} of {len(value)}>"
    if np is not None and isinstance(value, np.ndarray) and value.dtype.hasobject:
        return f"<{type(value).__name__} of {value.size}>"
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001 - a foreign repr may raise anything
        return f"<{type(value).__name__}>"


def _is_plain_key(key: Any) -> bool:
    if type(key) is str:
        return key.isascii() or type(_text(key)) is str
    return type(key) is int and _MIN_INT <= key < _END_OF_INTS


def _foreign_array(value: Any) -> Any:
    """Return an array of another library (JAX, PyTorch) as one of NumPy; ``None`` if it is no array."""
    if np is None or not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return None
    if hasattr(value, "detach"):  # a tensor that has a gradient, or is on another device
        value = value.detach().cpu()
    array = np.asarray(value)
    return None if array.dtype.hasobject else array


_headers: dict[Any, bytes] = {}


def _header(dtype: Any, shape: Any) -> bytes:
    """Return the header of an array: the lengths of dtype name and shape, then the name, then the shape."""
    known = _headers.get((dtype, shape))
    if known is None:
        name = dtype.str.encode()
        known = struct.pack(f"<BB{len(name)}s{len(shape)}I", len(name), len(shape), name, *shape)
        if len(_headers) < 1000:
            _headers[dtype, shape] = known
    return known


_SCALAR_HEADERS: dict[type, bytes] = {}
"""Headers of NumPy's scalars by their types, but for those whose size differs from value to value."""
if np is not None:
    _SCALAR_HEADERS.update(
        (np.dtype(name).type, _header(np.dtype(name), ())) for name in [*"?bhilqBHILQefdFD"]
    )


def exact(value: Any) -> Any:
    """Return the form of ``value`` for :func:`encode`; raise ``NotEncodable`` if it cannot be sent exactly."""
    return Packer(True).pack(value)


def readable(value: Any) -> Any:
    """Return the form of an info for :func:`encode`; objects that cannot be sent become texts."""
    if type(value) is dict and all(map(_is_plain_key, value)):
        return {
            key: item if type(item) in _AS_THEY_ARE else Packer(False).pack(item)
            for key, item in value.items()
        }
    return Packer(False).pack(value)


encode = _encode
"""Encode a packed message."""


# Decoding


def _unpack(code: int, data: memoryview) -> Any:
    read = _READERS.get(code)
    if read is None:
        raise ValueError(f"there is no value of kind {code} here")
    return read(data)


def _read_array(data: memoryview) -> Any:
    if np is None:
        raise ValueError("an array was given, and the suite has no NumPy")
    length, ndim = data[0], data[1]
    start = 2 + length + 4 * ndim
    shape = struct.unpack_from(f"<{ndim}I", data, 2 + length)
    return np.ndarray(shape, np.dtype(bytes(data[2 : 2 + length]).decode()), bytearray(data[start:]))


def _read_objects(data: memoryview) -> Any:
    shape, items = decode(data)
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(shape)


def _read_graph(data: memoryview) -> Any:
    parts = decode(data)
    for module in ("gymnasium.spaces", "gym.spaces"):
        try:
            return __import__(module, fromlist=["GraphInstance"]).GraphInstance(*parts)
        except (ImportError, AttributeError):
            continue
    return tuple(parts)


def _read_set(data: memoryview) -> Any:
    frozen, members = decode(data)
    return frozenset(members) if frozen else set(members)


_READERS: dict[int, Callable[[memoryview], Any]] = {
    ARRAY: _read_array,
    SCALAR: lambda data: _read_array(data)[()],
    TUPLE: lambda data: tuple(decode(data)),
    OBJECTS: _read_objects,
    BIG_INT: lambda data: int(bytes(data), 16),
    GRAPH: _read_graph,
    TEXT: lambda data: bytes(data).decode(*_ANY_TEXT),
    PAIRS: lambda data: {pair[0]: pair[1] for pair in decode(data)},
    SET: _read_set,
    COMPLEX: lambda data: complex(*decode(data)),
}

decode: Callable[[Any], Any] = msgspec.msgpack.Decoder(ext_hook=_unpack).decode
"""Decode a message of the owner."""
