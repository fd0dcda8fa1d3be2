"""Dataclasses and ``msgspec.Struct`` as Gymnasium spaces, and the way between objects and members.

===============================================  ====================================================
a field of type                                  has the space
===============================================  ====================================================
``str``                                          ``Unicode``
``bool``, ``Literal[…]``, ``Enum``, and unions   ``Discrete``: the values are numbered in the order
of these, with ``None`` too                      in which they are declared
``int``                                          ``Discrete`` where it is bounded to at most 1024
                                                 values, else a ``Box`` of one ``int64``
``float``                                        a ``Box`` of one ``float64``
another model                                    ``Dict``
``tuple[A, B]``                                  ``Tuple``
``Any``, ``list``, ``dict``, ``tuple[A, …]``,    :class:`JsonOf` that type: what has no fixed shape
``Optional`` and other unions                    travels as JSON
``Annotated[T, space]``                          that space: ``Annotated[np.ndarray, Box(…)]``
===============================================  ====================================================

``Annotated[int, msgspec.Meta(ge=0, le=9)]`` bounds a field; ``ge``, ``gt``, ``le``, ``lt``, ``min_length``
and ``max_length`` are known. Fields the constructor does not take (``init=False``) are left out.
"""

from __future__ import annotations

import copy
import copyreg
import enum
import functools
import math
import operator
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from envweave_gym.arrays import as_array, short
from envweave_gym.faults import InvalidArgument
from envweave_gym.spaces import Json, Unicode
from envweave_gym.stream import jsonable

MISFITS = (ValueError, TypeError, LookupError, ArithmeticError, msgspec.MsgspecError)
"""What a conversion may raise about a value that does not fit."""

_CHOICES = 1024
_UNIONS = (Union, types.UnionType)
_ALLOWED = (
    "str, bool, int, float, None, Literal, Enum, dataclass, msgspec.Struct, Any, list, dict[str, …], tuple, "
    "unions of these, and Annotated[…, space] for the rest"
)


def space_of(model: type) -> Dict:
    """The ``Dict`` space of a dataclass or Struct; a new one at each call."""
    return copy.deepcopy(codec_of(model).space)


def to_model(model: type, value: Any) -> Any:
    """The typed object that a member of ``space_of(model)`` stands for, made of plain Python values."""
    codec = codec_of(model)
    if not codec.space.contains(value):
        raise InvalidArgument(f"to_model: {short(value)} is not in {codec.space}")
    try:
        return codec.typed(value)
    except MISFITS as error:
        raise InvalidArgument(f"to_model: {error}") from error


def from_model(obj: Any) -> dict[str, Any]:
    """The member of ``space_of(type(obj))`` that stands for ``obj``."""
    codec = codec_of(type(obj))
    try:
        return codec.member(obj)
    except ValueError as error:
        raise InvalidArgument(f"from_model: {error}") from error


class JsonOf(Json):
    """The JSON values that msgspec reads as a Python type: ``JsonOf(list[int])``, ``JsonOf(str | None)``."""

    def __init__(
        self, hint: Any, max_length: int | None = 65536, *, seed: int | np.random.Generator | None = None
    ) -> None:
        """``hint`` is any type that a field of a model can have, but for arrays."""
        _check_json(hint, set())
        msgspec.json.Decoder(hint)
        self.hint = hint
        self._nothing = self.encode(plain(_draw(hint, np.random.default_rng(0), 0)))
        super().__init__(max_length, seed=seed)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is JSON that the type can be read from."""
        if not super().contains(x):
            return False
        try:
            msgspec.convert(x, self.hint)
        except MISFITS:
            return False
        return True

    def _sample_value(self) -> Any:
        try:
            return plain(_draw(self.hint, self.np_random, 3))
        except MISFITS:  # a model in it refused what was drawn
            return self.decode("")

    def __eq__(self, other: object, /) -> bool:
        return super().__eq__(other) and isinstance(other, JsonOf) and self.hint == other.hint

    def __repr__(self) -> str:
        return f"JsonOf({name_of(self.hint)}, {self.max_length if self.is_np_flattenable else None})"


def _rebuild_meta(meta: msgspec.Meta) -> tuple[Callable[[], msgspec.Meta], tuple[()]]:
    return functools.partial(msgspec.Meta, **dict(meta.__rich_repr__())), ()


copyreg.pickle(msgspec.Meta, _rebuild_meta)  # spaces travel to other processes with the types they name


@dataclass(frozen=True)
class Codec:
    """A space, the way from its members to typed values, and back (``ValueError`` for what does not fit)."""

    space: Any
    typed: Callable[[Any], Any]
    member: Callable[[Any], Any]


def is_model(hint: Any) -> bool:
    """Whether it is a dataclass or a Struct."""
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, msgspec.Struct))


def fields_of(model: type) -> dict[str, Any]:
    """The fields that the constructor takes, with their types."""
    try:
        hints = get_type_hints(model, include_extras=True)
    except NameError as error:
        raise InvalidArgument(f"{model.__name__}: {error}; define its types beside it") from None
    if issubclass(model, msgspec.Struct):
        return {name: hints[name] for name in model.__struct_fields__}
    return {field.name: hints[field.name] for field in fields(model) if field.init}


def codec_of(model: Any, left_out: frozenset[str] = frozenset()) -> Codec:
    """The codec of a model without the fields ``left_out``, which only ``member`` accepts."""
    if not is_model(model):
        raise InvalidArgument(f"{name_of(model)} is not a model; give a dataclass or a msgspec.Struct")
    return _model(model, left_out)


@functools.cache
def _model(model: type, left_out: frozenset[str] = frozenset()) -> Codec:
    hints = {name: hint for name, hint in fields_of(model).items() if name not in left_out}
    codecs = {name: _codec(hint, f"{model.__name__}.{name}") for name, hint in hints.items()}

    def typed(value: Any) -> Any:
        return model(**{name: codec.typed(value[name]) for name, codec in codecs.items()})

    def member(obj: Any) -> dict[str, Any]:
        if not isinstance(obj, model):
            raise ValueError(f"{short(obj)} is no {model.__name__}")
        return {name: codec.member(getattr(obj, name)) for name, codec in codecs.items()}

    return Codec(Dict({name: codec.space for name, codec in codecs.items()}), typed, member)


def _codec(hint: Any, where: str) -> Codec:
    """The codec of one field; ``where`` is what errors call it."""
    base, extras = _split(hint)
    args = get_args(base)
    if not _chosen(extras):
        if is_model(base):
            return _model(base)
        if get_origin(base) is tuple and args and args[-1] is not ...:
            return _tuple([_codec(arg, where) for arg in args])
    try:
        codec = _leaf(hint, _space(hint))
    except MISFITS as error:
        raise InvalidArgument(f"{where}: {error}") from error
    return Codec(codec.space, codec.typed, _checked(codec, where))


def _tuple(codecs: list[Codec]) -> Codec:
    def typed(value: Any) -> tuple[Any, ...]:
        return tuple(codec.typed(item) for codec, item in zip(codecs, value, strict=True))

    def member(value: Any) -> tuple[Any, ...]:
        return tuple(codec.member(item) for codec, item in zip(codecs, value, strict=True))

    return Codec(Tuple([codec.space for codec in codecs]), typed, member)


def _checked(codec: Codec, where: str) -> Callable[[Any], Any]:
    """``codec.member`` that names the field when a value does not fit."""

    def member(value: Any) -> Any:
        try:
            found = codec.member(value)
            fits, why = codec.space.contains(found), ""
        except MISFITS as error:
            found, fits, why = None, False, f": {error}"
        if not fits:
            raise ValueError(f"{where}: {short(value)} is not in {codec.space}{why}")
        return found

    return member


def _leaf(hint: Any, space: Space[Any]) -> Codec:
    """The codec between a type and its space; a sample shows whether an author has chosen one that agrees."""
    base, extras = _split(hint)
    values = _values(base)
    if isinstance(space, Discrete) and values:
        return _choice(values, space)
    if isinstance(space, Json):
        codec = Codec(space, functools.partial(msgspec.convert, type=hint), plain)
    elif base is Any or (base is str and isinstance(space, Text)):
        codec = Codec(space, lambda member: member, lambda value: value)
    elif isinstance(space, Discrete):
        number = space.dtype.type
        codec = Codec(space, lambda n: msgspec.convert(int(n), hint), lambda n: number(operator.index(n)))
    elif isinstance(space, Box) and base in (int, float, bool):
        codec = Codec(
            space,
            lambda x: msgspec.convert(np.asarray(x).item(), hint),
            lambda number: as_array(space, np.reshape(number, space.shape)),
        )
    elif isinstance(space, Box | MultiDiscrete | MultiBinary):
        is_array = (get_origin(base) or base) is np.ndarray
        typed = np.asarray if is_array else lambda x: msgspec.convert(np.asarray(x).tolist(), hint)
        codec = Codec(space, typed, functools.partial(as_array, space))
    else:
        raise InvalidArgument(f"{space} does not say how to write a {name_of(base)}; annotate Any instead")
    if _chosen(extras):
        codec.typed(copy.deepcopy(space).sample())
    return codec


def _choice(values: list[Any], space: Discrete) -> Codec:
    if len(values) != space.n:
        raise InvalidArgument(f"{space} does not have one number for each of {values}")
    start = int(space.start)
    numbers = {(type(value), value): space.dtype.type(start + i) for i, value in enumerate(values)}

    def member(value: Any) -> Any:
        value = value.item() if isinstance(value, np.generic) else value
        return numbers[type(value), value]

    return Codec(space, lambda number: values[int(number) - start], member)


def _values(base: Any) -> list[Any]:
    """The values of a type that has few of them; none for any other type."""
    if base is bool:
        return [False, True]
    if base is types.NoneType:
        return [None]
    if get_origin(base) is Literal:
        return list(get_args(base))
    if isinstance(base, type) and issubclass(base, enum.Enum) and not issubclass(base, enum.Flag):
        return list(base)
    if get_origin(base) in _UNIONS:
        arms = [_values(arm) for arm in get_args(base)]
        return [value for arm in arms for value in arm] if all(arms) else []
    return []


def _space(hint: Any) -> Space[Any]:
    """The space of a type that is no model: the annotated one, or that of the table above."""
    base, extras = _split(hint)
    if chosen := _chosen(extras):
        return copy.deepcopy(chosen[0])
    bounds = _bounds(extras)
    if values := _values(base):
        return Discrete(len(values))
    if base is str:
        return Unicode(bounds.get("max_length", 4096), min_length=bounds.get("min_length", 0))
    if base is int:
        return _integer_space(bounds)
    if base is float:
        return _real_space(bounds)
    if base is Any or _is_container(base):
        return JsonOf(hint)
    raise InvalidArgument(f"{name_of(hint)} has no space of its own; allowed are {_ALLOWED}")


def _integer_space(bounds: dict[str, Any]) -> Box | Discrete:
    low = max(bounds.get("ge", -math.inf), bounds.get("gt", -math.inf) + 1)
    high = min(bounds.get("le", math.inf), bounds.get("lt", math.inf) - 1)
    if 0 <= high - low < _CHOICES:
        return Discrete(int(high - low + 1), start=int(low))
    limits = np.iinfo(np.int64)
    return Box(low if low > limits.min else -np.inf, high if high < limits.max else np.inf, (1,), np.int64)


def _real_space(bounds: dict[str, Any]) -> Box:
    low, high = bounds.get("ge", -math.inf), bounds.get("le", math.inf)
    if "gt" in bounds:
        low = max(low, math.nextafter(bounds["gt"], math.inf))
    if "lt" in bounds:
        high = min(high, math.nextafter(bounds["lt"], -math.inf))
    return Box(low, high, (1,), np.float64)


def _bounds(extras: tuple[Any, ...]) -> dict[str, Any]:
    """What all the ``msgspec.Meta`` of a field say together."""
    names = ("ge", "gt", "le", "lt", "min_length", "max_length", "multiple_of", "pattern")
    metas = [extra for extra in extras if isinstance(extra, msgspec.Meta)]
    bounds = {
        name: getattr(meta, name) for meta in metas for name in names if getattr(meta, name) is not None
    }
    for name in bounds.keys() & {"multiple_of", "pattern"}:
        raise InvalidArgument(f"no space can say msgspec.Meta({name}=…); check it in __post_init__ instead")
    return bounds


def _split(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type and its annotations."""
    return (get_args(hint)[0], hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _chosen(extras: tuple[Any, ...]) -> list[Space[Any]]:
    return [extra for extra in extras if isinstance(extra, Space)]


def _is_container(base: Any) -> bool:
    return (get_origin(base) or base) in (list, dict, tuple, *_UNIONS)


# JSON: what msgspec writes and reads, walked through to check a type and to draw values of it.


def plain(value: Any) -> Any:
    """``value`` as JSON."""
    return jsonable(msgspec.to_builtins(value, str_keys=True, enc_hook=_unarray))


def _unarray(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise ValueError(f"{short(value)} cannot be written as JSON")


def _parts(base: Any) -> list[Any]:
    """The types of the items of a container, or of the arms of a union."""
    parts = [arg for arg in get_args(base) if arg is not ...]
    if get_origin(base) is dict and _split(parts.pop(0))[0] not in (str, Any):
        raise InvalidArgument(f"{name_of(base)} is no JSON, where keys are text; use dict[str, …]")
    return parts or [Any]


def _check_json(hint: Any, seen: set[Any]) -> None:
    """Say which part of a type cannot travel as JSON."""
    base, extras = _split(hint)
    if _chosen(extras):
        raise InvalidArgument(
            f"{name_of(base)} is a part of JSON here and has no space; use msgspec.Meta there"
        )
    if is_model(base):
        if base not in seen:
            seen.add(base)
            for inner in fields_of(base).values():
                _check_json(inner, seen)
    elif _is_container(base):
        for inner in _parts(base):
            _check_json(inner, seen)
    elif base is not Any:
        _space(hint)


def _draw(hint: Any, rng: np.random.Generator, depth: int) -> Any:
    """A random value of a type; at depth 0 as little as it can be."""
    base, extras = _split(hint)
    origin, args = get_origin(base) or base, get_args(base)
    if base is Any:
        return Json(seed=rng).sample() if depth > 0 else None
    if is_model(base):
        return base(**{name: _draw(inner, rng, depth - 1) for name, inner in fields_of(base).items()})
    if not _is_container(base):
        space = _space(hint)
        space.seed(int(rng.integers(2**31)))
        return _leaf(hint, space).typed(space.sample())
    parts = _parts(base)
    if origin in _UNIONS:
        nothing = types.NoneType in parts and depth <= 0
        return None if nothing else _draw(parts[rng.integers(len(parts))], rng, depth)
    if origin is tuple and args and args[-1] is not ...:
        return tuple(_draw(part, rng, depth - 1) for part in parts)
    bounds = _bounds(extras)
    fewest = bounds.get("min_length", 0)
    most = min(fewest + 2 if depth > 0 else fewest, bounds.get("max_length", math.inf))
    items = [_draw(parts[0], rng, depth - 1) for _ in range(rng.integers(fewest, most, endpoint=True))]
    return {f"key{i}": item for i, item in enumerate(items)} if origin is dict else origin(items)


def name_of(hint: Any) -> str:
    """How errors call a type."""
    is_class = isinstance(hint, type) and not get_args(hint)
    return hint.__qualname__ if is_class else str(hint).replace("typing.", "")
