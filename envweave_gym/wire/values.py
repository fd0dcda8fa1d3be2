"""Values as msgpack, so that what arrives is what was sent: arrays, scalars, tuples and streams included.

Arrays travel as dtype, shape and bytes, and arrive as writeable arrays of their own. A value that has no such
form (an object in an info, say) travels as :func:`envweave_gym.stream.jsonable` writes it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from gymnasium.spaces import GraphInstance
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from envweave_gym.faults import Fault, shown
from envweave_gym.lazy_streams import LazyStreams
from envweave_gym.spaces import encodable
from envweave_gym.stream import Stream, jsonable

ARRAY, SCALAR, TUPLE, OBJECTS, STREAM, FAULT, BIG_INT, GRAPH, STREAMS, NATIVE, TEXT, PAIRS = range(1, 13)
RESULT = 13
"""The kinds of msgpack extensions."""

_KINDS = "biufcSUmM"
"""The kinds of dtypes that travel: numbers, bytes, text and times, but no Python objects."""

_DTYPE = re.compile(
    r"[<>|=]?[biufcSU][1-9][0-9]{0,8}|[<>=]?[mM]8(\[[1-9]?[0-9]{0,5}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
_NAMES = {
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
}

_SAME = (float, bool, type(None), bytes)
_ANY_TEXT = ("utf-16-le", "surrogatepass")
"""How a text travels that UTF-8 cannot hold."""

_encoder = msgspec.msgpack.Encoder()
_LOW, _HIGH = -(1 << 63), 1 << 64


def pack(value: Any) -> Any:
    """``value`` as what msgspec writes without loss."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() or encodable(value) else Ext(TEXT, value.encode(*_ANY_TEXT))
    if kind in _SAME:
        return value
    if kind is int:
        return value if _LOW <= value < _HIGH else Ext(BIG_INT, hex(value).encode())
    packed = _PACKED.get(kind)
    if packed is not None:
        return packed(value)
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, np.ndarray):
        return _array(np.asarray(value))
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, msgspec.Struct):
        return _struct(value)
    return jsonable(value)


def _struct(value: msgspec.Struct) -> Any:
    """The result of a program is there what it is here; any other object is as JSON has it."""
    from envweave_gym.wire.results import Result, pack_result

    return pack_result(value) if isinstance(value, Result) else jsonable(value)


def _read_result(data: memoryview) -> Any:
    from envweave_gym.wire.results import read_result

    return read_result(data)


def _array(value: NDArray[Any]) -> Any:
    if value.dtype.hasobject:
        items = [pack(item) for item in value.ravel().tolist()]
        return Ext(OBJECTS, _encoder.encode([list(value.shape), items]))
    if value.dtype.kind not in _KINDS:
        return jsonable(value)
    return Ext(ARRAY, _header(value.dtype, value.shape) + value.tobytes())


_headers: dict[tuple[Any, ...], bytes] = {}


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The dtype and the shape: lengths of both, then the name of the one and the numbers of the other."""
    known = _headers.get((dtype, shape))
    if known is None:
        name = dtype.str.encode()
        known = struct.pack(f"<BB{len(name)}s{len(shape)}I", len(name), len(shape), name, *shape)
        if len(_headers) < 1000:
            _headers[dtype, shape] = known
    return known


def _scalar(value: np.generic) -> Any:
    return (
        Ext(SCALAR, _header(value.dtype, ()) + value.tobytes()) if value.dtype.kind in _KINDS else str(value)
    )


def _members(value: Mapping[Any, Any]) -> Any:
    if not all(isinstance(key, str | int) for key in value):
        pairs = [[pack(key), pack(item)] for key, item in value.items()]
        return Ext(PAIRS, _encoder.encode(pairs))
    return {_key(key): pack(item) for key, item in value.items()}


def _key(key: Any) -> Any:
    if type(key) is str:
        return key if key.isascii() or encodable(key) else jsonable(key)
    return pack(key)


def _stream(value: Stream) -> Any:
    return Ext(STREAM, _encoder.encode(value))


def _graph(value: GraphInstance) -> Any:
    return Ext(GRAPH, _encoder.encode([pack(part) for part in value]))


_PACKED: dict[type, Callable[[Any], Any]] = {
    dict: _members,
    list: lambda value: [pack(item) for item in value],
    tuple: lambda value: Ext(TUPLE, _encoder.encode([pack(item) for item in value])),
    np.ndarray: _array,
    Stream: _stream,
    Fault: lambda value: Ext(FAULT, _encoder.encode(value)),
    GraphInstance: _graph,
}


def packs(kind: type, pack_one: Callable[[Any], Any]) -> None:
    """Let values of another type travel: ``pack_one`` gives what msgspec writes of one."""
    _PACKED[kind] = pack_one


def unpack(code: int, data: memoryview) -> Any:
    """The value of an extension; ``ValueError`` where the bytes are none."""
    read = _UNPACKED.get(code)
    if read is None:
        raise ValueError(f"there is no value of kind {code}")
    try:
        return read(data)
    except TypeError as error:  # as of a tuple that is a number
        raise ValueError(f"what should be a value of kind {code} is none: {error}") from None


def _read_array(data: memoryview) -> NDArray[Any]:
    dtype, shape, start, size = _read_header(data)
    if size != len(data) - start:
        raise ValueError(f"{len(data) - start} bytes are no {dtype} array of shape {shape}")
    return np.frombuffer(bytearray(data[start:]), dtype).reshape(shape)


_Header = tuple[np.dtype[Any], tuple[int, ...], int, int]
_dtypes: dict[bytes, np.dtype[Any]] = {}
_read_before: dict[bytes, _Header] = {}


def _read_header(data: memoryview) -> _Header:
    """The dtype, the shape, where the bytes of the array begin, and how many there must be."""
    if len(data) < 2:
        raise ValueError("an array without a dtype")
    length, ndim = data[0], data[1]
    start = 2 + length + 4 * ndim
    if len(data) < start:
        raise ValueError("an array without its shape")
    header = bytes(data[:start])
    known = _read_before.get(header)
    if known is None:
        name = header[2 : 2 + length]
        dtype = _dtypes.get(name) or _read_dtype(name)
        shape = struct.unpack_from(f"<{ndim}I", header, 2 + length)
        known = dtype, shape, start, math.prod(shape) * dtype.itemsize
        if len(_read_before) < 1000:
            _read_before[header] = known
    return known


def _read_dtype(name: bytes) -> np.dtype[Any]:
    dtype = dtype_of(name.decode("latin-1"))
    if len(_dtypes) < 1000:
        _dtypes[name] = dtype
    return dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype with this name, of those that travel; NumPy itself reads nothing that is not one of them.

    A hostile name of a date (``"M8[s/0]"``) ends the process that gives it to NumPy.
    """
    if name not in _NAMES and _DTYPE.fullmatch(name) is None:
        raise ValueError(f"{shown(name)} is no dtype of arrays that travel")
    try:
        return np.dtype(name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{shown(name)} is no dtype") from error


def _read_scalar(data: memoryview) -> Any:
    return _read_array(data)[()]


def _read_objects(data: memoryview) -> NDArray[np.object_]:
    shape, items = _decoder.decode(data)
    array = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        array[index] = item
    return array.reshape(shape)


_UNPACKED: dict[int, Callable[[memoryview], Any]] = {
    ARRAY: _read_array,
    SCALAR: _read_scalar,
    TUPLE: lambda data: tuple(_decoder.decode(data)),
    OBJECTS: _read_objects,
    STREAM: msgspec.msgpack.Decoder(Stream).decode,
    FAULT: msgspec.msgpack.Decoder(Fault).decode,
    TEXT: lambda data: bytes(data).decode(*_ANY_TEXT),
    BIG_INT: lambda data: int(bytes(data), 16),
    PAIRS: lambda data: dict(_decoder.decode(data)),
    GRAPH: lambda data: GraphInstance(*_decoder.decode(data)),
    RESULT: _read_result,
}
_decoder = msgspec.msgpack.Decoder(ext_hook=unpack)


def unpacks(code: int, read: Callable[[memoryview], Any]) -> None:
    """Read the extensions of another kind with ``read``."""
    _UNPACKED[code] = read


def dumps(value: Any) -> bytes:
    """``value`` as msgpack."""
    return _encoder.encode(pack(value))


def loads(data: bytes) -> Any:
    """The value that :func:`dumps` wrote."""
    return _decoder.decode(data)


def _lazy(value: LazyStreams) -> Any:
    return _array(value.eager())


packs(LazyStreams, _lazy)
