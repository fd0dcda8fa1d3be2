"""What running a program came to, as it travels: an object of the same class there."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from envweave_gym.core.program_result import Result
from envweave_gym.wire import values

_CLASSES = {
    "result": "envweave_gym.core.program_result:Result",
    "execution": "envweave_gym.sandbox:Execution",
}
"""The classes that travel, by the names they have on the way."""


@cache
def _class(name: str) -> type[Result]:
    return pkgutil.resolve_name(_CLASSES[name])


def pack_result(value: Result) -> Any:
    """What msgspec writes of a result; one of another class travels as its fields."""
    fields, name = msgspec.to_builtins(value), type(value).__name__.lower()
    if name in _CLASSES and type(value) is _class(name):
        return Ext(values.RESULT, values.dumps([name, fields]))
    return values.pack(fields)


def read_result(data: memoryview) -> Result:
    """The result in the bytes; ``ValueError`` where they are none."""
    name, fields = values.loads(data)
    if name not in _CLASSES:
        raise ValueError(f"there is no result of class {name!r}")
    return msgspec.convert(fields, _class(name))
