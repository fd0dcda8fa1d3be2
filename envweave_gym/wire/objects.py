"""Serialisation of Python types that msgpack lacks: sets, complex numbers, dates, enums, named tuples, dataclasses.

Enum members, named tuples and dataclasses are sent with the name of their class. They are rebuilt if that class
is loaded already, and else arrive in a plain form: the member's value, a tuple, a dict. No module is imported
and no constructor is called because a peer names it, so a peer cannot choose code to run.
"""

from __future__ import annotations

import dataclasses
import datetime as dates
import pkgutil
import sys
from enum import Enum, Flag
from functools import cache
from typing import Any, Literal, cast

import msgspec
from msgspec.msgpack import Ext

from envweave_gym.core.array_conversion import foreign_array
from envweave_gym.core.faults import shown
from envweave_gym.core.program_result import Result
from envweave_gym.wire import values
from envweave_gym.wire.values import COMPLEX, MOMENT, RECORD, RESULT, SET, TUPLE, not_encodable, pack_exactly

_encode = msgspec.msgpack.Encoder().encode
_record_decoder = msgspec.msgpack.Decoder(
    tuple[Literal["enum", "tuple", "dataclass"], str, str, list[str | None], list[Any]],
    ext_hook=values.unpack,
)
"""Decoder of a record: its kind, module and name of its class, names and values of its fields."""
_PLAIN: tuple[type, ...] = (float, int, bytes, list)
"""Types whose subclasses are sent as their base type."""
_MAX_FLAGS = 12
_MOMENTS: tuple[Any, ...] = (dates.datetime, dates.date, dates.time)


# Sending


def pack_object(value: Any) -> Any:
    """Convert a value of a rare type to an extension; raise ``NotEncodable`` if it cannot be sent without loss."""
    if isinstance(value, Enum):
        return _record("enum", type(value), [getattr(value, "name", None)], [value.value])
    if isinstance(value, tuple):
        return _pack_tuple(cast("tuple[Any, ...]", value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        if not all(hasattr(value, name) for name in names):
            raise not_encodable(value)
        return _record("dataclass", type(value), names, [getattr(value, name) for name in names])
    if isinstance(value, set | frozenset):
        members = [pack_exactly(one) for one in cast("frozenset[Any]", value)]
        return Ext(SET, _encode([isinstance(value, frozenset), members]))
    if isinstance(value, complex):
        return Ext(COMPLEX, _encode([value.real, value.imag]))
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return pack_exactly(str.__str__(value))
    for plain in _PLAIN:
        if isinstance(value, plain):
            return pack_exactly(plain(value))
    return _pack_moment(value) or _pack_foreign_array(value)


def _pack_tuple(value: tuple[Any, ...]) -> Any:
    names: Any = getattr(value, "_fields", None)
    if isinstance(names, tuple) and len(cast("tuple[str, ...]", names)) == len(value):
        return _record("tuple", type(value), list(cast("tuple[str, ...]", names)), list(value))
    return Ext(TUPLE, _encode([pack_exactly(one) for one in value]))


def _record(kind: str, cls: type, names: list[Any], fields: list[Any]) -> Any:
    packed = [pack_exactly(one) for one in fields]
    return Ext(RECORD, _encode([kind, cls.__module__, cls.__qualname__, names, packed]))


def _pack_moment(value: Any) -> Any:
    if isinstance(value, dates.timedelta):
        return Ext(MOMENT, _encode(["timedelta", [value.days, value.seconds, value.microseconds]]))
    for kind in _MOMENTS:
        if isinstance(value, kind):  # a subclass may write itself with more digits than can be read
            return Ext(MOMENT, _encode([kind.__name__, kind.isoformat(value)]))
    return None


def _pack_foreign_array(value: Any) -> Any:
    array = foreign_array(value)
    if array is None:
        raise not_encodable(value)
    return pack_exactly(array[()])  # a scalar where it has no dimensions


# Reading


def read_set(data: memoryview) -> Any:
    """Decode a set or a frozen set; return a list if a member cannot be hashed in its plain form."""
    frozen, members = values.loads(data)
    # wire/hash_collisions.py counts the items of a list, but not those of an array or a tuple.
    if type(members) is not list:
        raise ValueError("a set whose members are no list")
    try:
        return frozenset(members) if frozen else set(members)
    except TypeError:
        return members


def dict_of(pairs: list[Any]) -> dict[Any, Any]:
    """Return the dict of a list of pairs; a key that cannot be hashed in its plain form becomes its ``repr``."""
    return {_as_key(key): item for key, item in pairs}


def _as_key(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def read_complex(data: memoryview) -> complex:
    """Decode a Python complex number."""
    real, imag = values.loads(data)
    return complex(real, imag)


def read_moment(data: memoryview) -> Any:
    """Decode a date, a time, a datetime or a timedelta."""
    name, content = values.loads(data)
    try:
        if name == "timedelta":
            return dates.timedelta(*content)
        kind = next(kind for kind in _MOMENTS if kind.__name__ == name)
        return kind.fromisoformat(content)
    except (StopIteration, OverflowError) as error:
        raise ValueError(f"{shown(content)} is no {shown(name)}") from error


def read_record(data: memoryview) -> Any:
    """Decode an enum member, named tuple or dataclass; return its plain form if its class is not loaded here."""
    kind, module, qualname, names, fields = _record_decoder.decode(data)
    if len(names) != len(fields) or (kind == "enum" and len(fields) != 1):
        raise ValueError("a record with more or fewer names than fields")
    cls = _loaded(module, qualname)
    if kind == "enum":
        return _member(cls, names[0], fields[0])
    if kind == "tuple":
        return _named_tuple(cls, names, fields)
    return _dataclass(cls, names, fields)


def _loaded(module: Any, qualname: Any) -> Any:
    """Return the class with this name if it is loaded, without running code: no import, no ``__getattr__``.

    A class with ``__del__`` is refused: that method would run with attributes that a peer has chosen.
    """
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            return None
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and not hasattr(found, "__del__") else None


def _member(cls: Any, name: Any, value: Any) -> Any:
    if cls is None or not issubclass(cls, Enum):
        return value
    member: Any = cls.__members__.get(name)
    try:
        if member is not None and member.value == value:
            return member
        return _flags(cls, value) if issubclass(cls, Flag) else value
    except ValueError:  # also of arrays, which are not just equal or other
        return value


def _flags(cls: type[Flag], value: Any) -> Any:
    """Return the combination of flags with this value, or the plain ``value`` if it is not valid.

    Python caches each combination for good. So enums with many members are refused, or a peer could fill the
    memory.
    """
    members: list[Any] = list(cls)
    if type(value) is not int or len(members) > _MAX_FLAGS:
        return value
    known = 0
    for member in members:
        known |= member.value
    return cls(value) if 0 <= value == value & known else value


def _named_tuple(cls: Any, names: list[Any], fields: list[Any]) -> Any:
    known = cls is not None and issubclass(cls, tuple) and getattr(cls, "_fields", None) == tuple(names)
    return tuple.__new__(cast("type[tuple[Any, ...]]", cls), fields) if known else tuple(fields)


def _dataclass(cls: Any, names: list[Any], fields: list[Any]) -> Any:
    if cls is None or not dataclasses.is_dataclass(cls):
        return dict(zip(names, fields, strict=True))
    if [field.name for field in dataclasses.fields(cls)] != names:  # it is of another version
        return dict(zip(names, fields, strict=True))
    try:
        made: Any = object.__new__(cast("type[Any]", cls))
    except TypeError:  # it extends a type with a layout of its own, such as Exception
        return dict(zip(names, fields, strict=True))
    for name, field in zip(names, fields, strict=True):
        object.__setattr__(made, name, field)
    return made


# Results of programs

_RESULTS = {
    "result": "envweave_gym.core.program_result:Result",
    "execution": "envweave_gym.sandbox:Execution",
}
"""Classes of program results that can be sent, by their names on the wire."""


@cache
def _result_class(name: str) -> type[Result]:
    return pkgutil.resolve_name(_RESULTS[name])


def pack_struct(value: msgspec.Struct) -> Any:
    """Pack a sandbox program's result so that it arrives as one, and any other struct as a dict of its fields."""
    if isinstance(value, Result):
        return pack_result(value)
    return {name: pack_exactly(getattr(value, name)) for name in value.__struct_fields__}


def pack_result(value: Result) -> Any:
    """Pack a sandbox program's result; one of an unknown class is sent as a dict of its fields."""
    fields, name = msgspec.to_builtins(value), type(value).__name__.lower()
    if name in _RESULTS and type(value) is _result_class(name):
        return Ext(RESULT, values.dumps([name, fields]))
    return values.pack(fields)


def read_result(data: memoryview) -> Result:
    """Decode a sandbox program's result; raise ``ValueError`` if the bytes are not valid."""
    name, fields = values.loads(data)
    if name not in _RESULTS:
        raise ValueError(f"there is no result of class {name!r}")
    return msgspec.convert(fields, _result_class(name))
