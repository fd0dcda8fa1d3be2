"""Serialisation of spaces whose classes are neither Gymnasium's nor ours.

A peer that trusts the sender imports the class and sets its attributes (:func:`rebuilt`). Any other peer gets
an :func:`opaque` space, whose ``contains`` and ``sample`` ask the sender. A space never arrives as a space of a
different class with other members.
"""

from __future__ import annotations

import copy
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Space

from envweave_gym.core.faults import NotAvailable
from envweave_gym.wire.values import NotEncodable, dtype_of, dumps, not_encodable, pack_exactly

Data = dict[str, Any]
Asking = Callable[[str, Any], Any]
"""Function that asks the sender about its space: ``("contains", value)`` or ``("sample", seed)``."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_GENERATOR = ("_np_random", "_np_random_seed")
_HARMLESS_ATTRIBUTES = {
    *("__init__", "__repr__", "__module__", "__doc__", "__annotations__", "__parameters__"),
    *(
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations_cache__",
        "__annotate_func__",
    ),
}
"""Attributes that a subclass may define and still have the members, samples and codecs of its base class."""


def is_as(space: Space[Any], known: type) -> bool:
    """Return whether a space behaves like its base class ``known``: no class in between overrides a method."""
    between = type(space).__mro__[: type(space).__mro__.index(known)]
    return all(vars(kind).keys() <= _HARMLESS_ATTRIBUTES for kind in between)


# Writing


def foreign_to_data(space: Space[Any], base: Data | None, to_data: Callable[[Space[Any]], Data]) -> Data:
    """Return the data that describes a space of a class that is neither Gymnasium's nor ours.

    ``base`` is the data of the space as its nearest base class known here would have it, or ``None``. ``to_data``
    converts a space inside this one.
    """
    kind = type(space)
    dtype = None if space.dtype is None else space.dtype.str
    return {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "repr": _ADDRESS.sub("", repr(space)),
        "shape": None if space.shape is None else list(space.shape),
        "dtype": dtype,
        "base": base,
        "recipe": _recipe(space, to_data),
    }


def _recipe(space: Any, to_data: Callable[[Space[Any]], Data]) -> list[Any] | None:
    """Return how the receiver can build the space: its attributes, or a constructor call without arguments.

    Return ``None`` if neither works. ``to_data`` converts a space inside this one.
    """
    package = type(space).__module__.partition(".")[0]
    attributes = {name: value for name, value in vars(space).items() if name not in _GENERATOR}
    try:
        return ["state", {name: _part(value, package, to_data) for name, value in attributes.items()}]
    except (NotEncodable, NotAvailable, RecursionError):
        pass
    try:
        return ["call"] if type(space)() == space else None
    except Exception:  # noqa: BLE001 - a foreign constructor may raise anything; it may want arguments
        return None


def _part(value: Any, package: str, to_data: Callable[[Space[Any]], Data]) -> list[Any]:
    """Convert an attribute, or an item of one, to a pair of kind and data; raise ``NotEncodable`` if it cannot be sent.

    ``package`` is the package of the space, whose functions are sent by name. ``to_data`` converts inner spaces.
    """
    if isinstance(value, Space):
        return ["space", to_data(value)]
    if isinstance(value, np.dtype):
        return ["dtype", value.str]
    if isinstance(value, FunctionType):
        return ["function", _reference(value, package)]
    if type(value) in (list, tuple) and any(isinstance(item, Space) for item in value):
        return [type(value).__name__, [_part(item, package, to_data) for item in value]]
    if isinstance(value, dict) and any(isinstance(item, Space) for item in value.values()):
        pairs = cast("dict[Any, Any]", value).items()
        return ["dict", [[key, _part(item, package, to_data)] for key, item in pairs]]
    pack_exactly(value)
    return ["value", value]


def _reference(function: FunctionType, package: str) -> str:
    """Return the name of a function; raise ``NotEncodable`` if it is not in the package of the space."""
    name = f"{function.__module__}:{function.__qualname__}"
    if function.__module__.partition(".")[0] != package or "<" in name or _resolved(name) is not function:
        raise not_encodable(function)
    return name


def _resolved(name: str) -> Any:
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return None


# Building


def rebuilt(data: Data, from_data: Callable[[Data], Space[Any]]) -> Space[Any] | None:
    """Import the class of a space and build the space; return ``None`` if that is not possible here.

    ``from_data`` builds the spaces that it contains. Call this only with data of a trusted server, because the
    import runs code that the server names.
    """
    kind, recipe = _resolved(data["class"]), data["recipe"]
    if recipe is None or not (isinstance(kind, type) and issubclass(kind, Space)):
        return None
    try:
        made: Any = kind() if recipe[0] == "call" else kind.__new__(kind)
        if recipe[0] == "state":
            package = data["class"].partition(":")[0].partition(".")[0]
            parts = {name: _whole(part, package, from_data) for name, part in recipe[1].items()}
            vars(made).update(dict.fromkeys(_GENERATOR) | parts)
        return made if _ADDRESS.sub("", repr(made)) == data["repr"] else None
    except Exception:  # noqa: BLE001 - the class here may be of another version, and raise anything
        return None


def _whole(part: list[Any], package: str, from_data: Callable[[Data], Space[Any]]) -> Any:
    kind, value = part
    if kind == "space":
        return from_data(value)
    if kind == "dtype":
        return np.dtype(object) if value == "|O" else dtype_of(value)
    if kind == "function":
        function = _resolved(value) if value.partition(":")[0].partition(".")[0] == package else None
        if function is None:
            raise LookupError(value)
        return function
    if kind == "dict":
        return {key: _whole(item, package, from_data) for key, item in value}
    if kind in ("list", "tuple"):
        items = [_whole(item, package, from_data) for item in value]
        return items if kind == "list" else tuple(items)
    return value


class _Opaque(Space[Any]):
    """Base class of spaces whose class only the server has: ``contains`` and ``sample`` ask the server.

    Each also derives from the nearest base class of its space that the client has. Samples depend on ``seed``, but
    differ from those of the original space with the same seed.
    """

    _data: Data
    _ask: Asking | None

    def contains(self, x: Any) -> bool:
        """Ask the server whether its space contains ``x``."""
        try:
            pack_exactly(x)
        except NotEncodable:
            return False
        return bool(self._ask_server("contains", x))

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Ask the server for a sample, with a seed from the generator of this object."""
        if mask is not None or probability is not None:
            raise NotAvailable(f"{self!r} is a space of a server, which draws without mask and probability")
        return self._ask_server("sample", int(self.np_random.integers(1 << 31)))

    def _ask_server(self, question: str, argument: Any) -> Any:
        if self._ask is None:
            raise NotAvailable(
                f"{self!r} is a space of a server, and this copy of it has none to ask; take that of the "
                "environment, or install the package that has the class"
            )
        return self._ask(question, argument)

    @property
    def is_np_flattenable(self) -> bool:
        """``False``, because only the server knows the members of the space."""
        return False

    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, _Opaque) and dumps(self._data) == dumps(other._data)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as of Gymnasium's spaces

    def __repr__(self) -> str:
        return self._data["repr"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied: Any = _restored(self._data, copy.deepcopy(self._np_random, memo))
        copied._ask = self._ask  # not a copy of the environment that answers
        return copied

    def __reduce__(self) -> Any:
        return _restored, (self._data, self._np_random)


def opaque(data: Data, base: Space[Any] | None, ask: Asking | None = None) -> Space[Any]:
    """Return a space that asks the server (``ask``) about its members.

    It is an instance of the class of ``base``, a space of the known base class, so it is batched and serialised
    as such spaces are.
    """
    shape, dtype = data["shape"], data["dtype"]
    if base is None:
        base = Space(shape, None if dtype is None or dtype == "|O" else dtype_of(dtype))
    kind: Any = _opaque_class(type(base))
    made: Any = kind.__new__(kind)
    vars(made).update(vars(base))
    made._data, made._ask = data, ask
    return made


@cache
def _opaque_class(base: type) -> type:
    return type("_Opaque", (_Opaque,) if base is Space else (_Opaque, base), {"__module__": __name__})


def _restored(data: Data, generator: Any) -> Space[Any]:
    from envweave_gym.wire.spaces import base_of

    made: Any = opaque(data, base_of(data))
    made._np_random = generator
    return made
