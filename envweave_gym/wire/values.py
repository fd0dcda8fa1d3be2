"""Conversion of values to msgpack and back, without loss: arrays, scalars, tuples and streams included.

Arrays are sent as dtype, shape and bytes, and arrive as new writeable NumPy arrays, whatever their library.
:func:`pack_exactly` refuses a value that cannot be sent without loss; :func:`pack` sends it as JSON instead
(:func:`envweave_gym.core.jsonable.jsonable`), for example an object in an info.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np
from gymnasium.spaces import Dict, Discrete, GraphInstance, Space
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import encodable
from envweave_gym.episode.stream import Stream
from envweave_gym.episode.vector_infos import StreamRows

ARRAY, SCALAR, TUPLE, OBJECTS, STREAM, FAULT, BIG_INT, GRAPH, STREAMS, NATIVE, TEXT, PAIRS = range(1, 13)
RESULT, SET, COMPLEX, MOMENT, RECORD = range(13, 18)
"""The kinds of msgpack extensions."""
HASHED = frozenset({PAIRS, SET})
"""The kinds whose items become keys of dicts and sets (:mod:`envweave_gym.wire.hash_collisions`)."""

_KINDS = "biufcSUmM"
"""The ``dtype.kind`` letters that may be sent: numbers, bytes, text and times, but no Python objects."""

_DTYPE = re.compile(
    r"[<>|=]?[biufcSU][1-9][0-9]{0,8}|[<>|=]?[SU]0|[<>=]?[mM]8(\[([1-9][0-9]{0,4})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
_NAMES = {
    *("bool", "float16", "float32", "float64", "complex64", "complex128"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
}

_TEXT_KINDS = "SU"
_SAME = (float, bool, type(None), bytes)
_ANY_TEXT = ("utf-16-le", "surrogatepass")
"""The codec and error handler of texts with lone surrogates, which UTF-8 cannot hold."""

MOST_BITS = 1 << 12
"""The limit of bits of an integer that is sent (1,234 decimal digits).

Python refuses to print integers of more than 4,300 digits, even in an error message.
"""
_LONGEST_INTEGER = len("-0x") + MOST_BITS // 4

_LAST_CODE_POINT = 0x10FFFF
"""The highest code point of Unicode.

Python raises ``SystemError`` when it converts a NumPy text with a higher one, long after the array has arrived.
"""

_encoder = msgspec.msgpack.Encoder()
_LOW, _HIGH = -(1 << 63), 1 << 64
_SHORT = 1 << 63


class NotEncodable(TypeError):
    """Error if a value cannot be sent without loss, because neither msgpack nor our extensions can represent it."""


def not_encodable(value: Any) -> NotEncodable:
    """Return the exception for a ``value`` that cannot be sent; its message lists what can be."""
    return NotEncodable(
        f"{shown(value)} of type {type(value).__name__} cannot be sent as it is; give numbers, texts, "
        "arrays, or lists, tuples, sets, dicts and dataclasses of those"
    )


def fits(value: int) -> bool:
    """Return whether an integer is small enough to be sent."""
    return value.bit_length() <= MOST_BITS


def _big_int(value: int) -> Ext:
    if not fits(value):
        why = f"an integer of {value.bit_length():,} bits cannot be sent; give one of at most {MOST_BITS:,}"
        raise NotEncodable(why)
    return Ext(BIG_INT, hex(value).encode())


def _read_big_int(data: memoryview) -> int:
    value = int(bytes(data), 16) if len(data) <= _LONGEST_INTEGER else None
    if value is None or not fits(value):
        raise ValueError(f"it has an integer of more than {MOST_BITS:,} bits")
    return value


def exact(what: str, value: Any) -> Any:
    """Call :func:`pack_exactly`; the error for a value that cannot be sent names it ``what``."""
    try:
        return (_PACKED.get(type(value)) or pack_exactly)(value)
    except NotEncodable as error:
        raise NotEncodable(f"the {what} has a part that does not travel: {error}") from None


def pack(value: Any) -> Any:
    """Convert ``value`` to an object that msgspec encodes; parts that cannot be sent exactly become JSON."""
    try:
        return (_PACKED.get(type(value)) or pack_exactly)(value)
    except NotEncodable:
        return pack_exactly(_with_forms(value))


def _with_forms(value: Any) -> Any:
    """Return ``value`` with JSON data in place of those objects in it that cannot be sent exactly."""
    if isinstance(value, Mapping):
        return {_with_forms(key): _with_forms(item) for key, item in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(map(_with_forms, value))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        items = np.empty(value.size, object)
        for index, item in enumerate(value.ravel().tolist()):
            items[index] = _with_forms(item)
        return items.reshape(value.shape)
    try:
        pack_exactly(value)
    except NotEncodable:
        return jsonable(value)
    return value


def packer_of(space: Space[Any]) -> Callable[[Any], Any]:
    """Return a function that packs like :func:`pack`, but in fewer calls for members of ``space``."""
    if type(space) is Discrete:
        return _pack_choice
    return _dict_packer(space) if type(space) is Dict else pack


def _pack_choice(value: Any) -> Any:
    if type(value) is np.int64:
        return Ext(SCALAR, _INT64 + value.tobytes())
    return value if type(value) is int and _LOW <= value < _HIGH else pack(value)


def _dict_packer(space: Dict) -> Callable[[Any], Any]:
    packers = {key: packer_of(inner) for key, inner in space.spaces.items() if str(key).isascii()}

    def pack_dict(value: Any) -> Any:
        if type(value) is not dict:
            return pack(value)
        packed: dict[str, Any] = {}
        for key, item in value.items():
            pack_item = packers.get(key) if type(key) is str else None
            if pack_item is None:
                return pack(value)
            packed[key] = pack_item(item)
        return packed

    return pack_dict


def pack_exactly(value: Any) -> Any:
    """Convert ``value`` to an object that msgspec encodes without loss; raise ``NotEncodable`` if there is none."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() or encodable(value) else Ext(TEXT, value.encode(*_ANY_TEXT))
    if kind in _SAME:
        return value
    if kind is int:
        return value if _LOW <= value < _HIGH else _big_int(value)
    packed = _PACKED.get(kind)
    if packed is not None:
        return packed(value)
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, np.ndarray):
        if value.dtype.names is None and np.ma.is_masked(value):
            raise NotEncodable(
                f"{shown(value)} has masked elements, which cannot be sent; give its filled(), or the data "
                "and the mask as two arrays"
            )
        return pack_array(np.asarray(value))
    if isinstance(value, Mapping):
        return _members(value)
    if isinstance(value, msgspec.Struct):
        return _objects().pack_struct(value)
    return _objects().pack_object(value)


def _objects() -> Any:
    """Import the module for rare types on first use, and return it."""
    from envweave_gym.wire import objects

    return objects


def _read_pairs(pairs: Any) -> Any:
    """Return the dict of a list of ``[key, value]`` lists.

    Tuples and arrays are refused in place of lists, because ``hash_collisions.py`` does not count their keys.
    """
    if type(pairs) is not list or any(type(pair) is not list for pair in cast("list[Any]", pairs)):
        raise ValueError("a dict whose pairs are no lists")
    try:
        return dict(pairs)
    except TypeError:  # a key came in a plain form that cannot be hashed
        return _objects().dict_of(pairs)


def pack_array(value: NDArray[Any]) -> Any:
    """Convert a NumPy array to an extension; raise ``NotEncodable`` if it holds an object that cannot be sent."""
    if value.dtype.hasobject:
        items = [pack_exactly(item) for item in value.ravel().tolist()]
        return Ext(OBJECTS, _encoder.encode([list(value.shape), items]))
    if value.dtype.kind not in _KINDS:
        value = _narrow(value)
    if value.dtype.itemsize == 0:  # of empty texts; so that no header can claim any number of them
        value = value.astype(f"{value.dtype.kind}1")
    header = _headers.get((value.dtype, value.shape)) or _header(value.dtype, value.shape)
    return Ext(ARRAY, header + value.tobytes())


def _narrow(value: Any) -> Any:
    """Convert an array of a dtype that NumPy lacks (bfloat16, int4, …) to float32, which holds all values of it."""
    if value.dtype.names is not None or value.dtype.type is np.void:
        raise not_encodable(value)
    return value.astype(np.float32)


_headers: dict[tuple[Any, ...], bytes] = {}
_MOST_HEADERS = 1000


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of an array: the lengths of dtype name and shape, then the name, then the shape."""
    name = dtype.str.encode()
    header = struct.pack(f"<BB{len(name)}s{len(shape)}I", len(name), len(shape), name, *shape)
    if len(_headers) < _MOST_HEADERS:
        _headers[dtype, shape] = header
    return header


_INT64 = _header(np.dtype(np.int64), ())


def _scalar(value: np.generic) -> Any:
    if value.dtype.kind not in _KINDS:
        return _scalar(_narrow(value))
    data = value.tobytes() if value.dtype.itemsize else b""  # of an empty text it is one character
    return Ext(SCALAR, (_headers.get((value.dtype, ())) or _header(value.dtype, ())) + data)


def _members(value: Mapping[Any, Any]) -> Any:
    members: dict[Any, Any] = {}
    for key, item in value.items():
        if not ((type(key) is str and key.isascii()) or _is_plain_key(key)):
            pairs = [[pack_exactly(key), pack_exactly(item)] for key, item in value.items()]
            return Ext(PAIRS, _encoder.encode(pairs))
        kind = type(item)
        # Infos and actions are mostly dicts of such: a call of ours for each would double their time.
        if kind in _SAME or (kind is int and -_SHORT < item < _SHORT) or (kind is str and item.isascii()):
            members[key] = item
        else:
            members[key] = (_PACKED.get(kind) or pack_exactly)(item)
    return members


def _is_plain_key(key: Any) -> bool:
    """Return whether msgpack can encode ``key`` as it is: msgspec allows no extension as a key of a map."""
    if type(key) is str:
        return key.isascii() or encodable(key)
    return type(key) is int and _LOW <= key < _HIGH


def _stream(value: Stream) -> Any:
    return Ext(STREAM, _encoder.encode(value))


def _graph(value: GraphInstance) -> Any:
    return Ext(GRAPH, _encoder.encode([pack_exactly(part) for part in value]))


_PACKED: dict[type, Callable[[Any], Any]] = {
    dict: _members,
    list: lambda value: [pack_exactly(item) for item in value],
    tuple: lambda value: Ext(TUPLE, _encoder.encode([pack_exactly(item) for item in value])),
    np.ndarray: pack_array,
    Stream: _stream,
    Fault: lambda value: Ext(FAULT, _encoder.encode(value)),
    GraphInstance: _graph,
    **dict.fromkeys((np.bool_, np.int64, np.int32, np.uint8, np.float64, np.float32), _scalar),
}
"""The function that packs values of each type; those of ``_SAME``, ints and texts need none."""


def packs(kind: type, pack_one: Callable[[Any], Any]) -> None:
    """Register ``pack_one``, which converts values of type ``kind`` to an object that msgspec encodes."""
    _PACKED[kind] = pack_one


def unpack(code: int, data: memoryview) -> Any:
    """Decode an extension by its ``code``; raise ``ValueError`` if ``data`` is not a valid value of that kind."""
    read = _UNPACKED.get(code)
    if read is None:
        raise ValueError(f"there is no value of kind {code}")
    try:
        return read(data)
    except (
        TypeError,
        OverflowError,
    ) as error:  # a tuple that is a number, a complex number that is too large
        raise ValueError(f"what should be a value of kind {code} is none: {error}") from None


def _read_array(data: memoryview) -> NDArray[Any]:
    if len(data) < 2:
        raise ValueError("an array without a dtype")
    header = data[: 2 + data[0] + 4 * data[1]].tobytes()
    dtype, shape, start, size = _read_before.get(header) or array_header(header)
    if size != len(data) - start:
        raise ValueError(f"{len(data) - start} bytes are no {dtype} array of shape {shape}")
    # One call: frombuffer() and reshape() take three times as long. The array owns the bytearray, so it is writeable.
    array = np.ndarray(shape, dtype, bytearray(data[start:]))
    if dtype.kind in _TEXT_KINDS:
        _check_texts(array)
    return array


def _check_texts(array: NDArray[Any]) -> None:
    """Raise ``ValueError`` if an array of texts claims items without bytes, or has characters beyond Unicode."""
    dtype = array.dtype
    if dtype.itemsize == 0 and array.shape:
        raise ValueError("an array of texts without characters")
    if dtype.kind == "U" and array.size and dtype.itemsize and (_code_points(array) > _LAST_CODE_POINT).any():
        raise ValueError("an array of text with a code point beyond Unicode")


def _code_points(texts: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(texts, f"{texts.dtype.byteorder}u4")


_Header = tuple[np.dtype[Any], tuple[int, ...], int, int]
_dtypes: dict[bytes, np.dtype[Any]] = {}
_read_before: dict[bytes, _Header] = {}


def array_header(header: bytes) -> _Header:
    """Parse the header of an array: return dtype, shape, the offset of the data and its size in bytes.

    ``header`` is everything before the data. Its first two bytes are the lengths of the dtype's name and of the
    shape.
    """
    length, ndim = header[0], header[1]
    start = 2 + length + 4 * ndim
    if len(header) < start:
        raise ValueError("an array without its shape")
    name = header[2 : 2 + length]
    dtype = _dtypes.get(name) or _read_dtype(name)
    shape = struct.unpack_from(f"<{ndim}I", header, 2 + length)
    known = dtype, shape, start, math.prod(shape) * dtype.itemsize
    if len(_read_before) < _MOST_HEADERS:
        _read_before[header] = known
    return known


def _read_dtype(name: bytes) -> np.dtype[Any]:
    dtype = dtype_of(name.decode("latin-1"))
    if len(_dtypes) < _MOST_HEADERS:
        _dtypes[name] = dtype
    return dtype


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype with this name; raise ``ValueError`` if arrays of it may not be sent.

    The name is checked before NumPy sees it: a hostile name of a date type (``"M8[s/0]"``, or ``"M8[0s]"`` once
    it is compared) kills the process with SIGFPE inside NumPy. So multiples of a time unit must be 1 to 99,999.
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
    BIG_INT: _read_big_int,
    PAIRS: lambda data: _read_pairs(_decoder.decode(data)),
    GRAPH: lambda data: GraphInstance(*_decoder.decode(data)),
    RESULT: lambda data: _objects().read_result(data),
    SET: lambda data: _objects().read_set(data),
    COMPLEX: lambda data: _objects().read_complex(data),
    MOMENT: lambda data: _objects().read_moment(data),
    RECORD: lambda data: _objects().read_record(data),
}
_decoder = msgspec.msgpack.Decoder(ext_hook=unpack)


def unpacks(code: int, read: Callable[[memoryview], Any]) -> None:
    """Register ``read`` as the decoder of extensions with this ``code``."""
    _UNPACKED[code] = read


def dumps(value: Any) -> bytes:
    """Encode ``value`` as msgpack."""
    return _encoder.encode(pack(value))


def loads(data: bytes | memoryview) -> Any:
    """Decode a value that :func:`dumps` encoded.

    Nested extensions are decoded in place: a copy at each level would take their size times their depth.
    """
    return _decoder.decode(data)


packs(StreamRows, lambda value: pack_array(np.asarray(value)))
