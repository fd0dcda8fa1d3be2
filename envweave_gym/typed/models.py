"""Converts models (dataclasses, ``msgspec.Struct``) to Gymnasium spaces, and objects to members of them and back.

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
``Any``, ``list``, ``dict``, ``tuple[A, …]``,    :class:`JsonOf` that type: values without a fixed
``Optional`` and other unions                    shape travel as JSON
``Annotated[T, space]``                          that space: ``Annotated[np.ndarray, Box(…)]``
===============================================  ====================================================

``Annotated[int, msgspec.Meta(ge=0, le=9)]`` bounds a field; ``ge``, ``gt``, ``le``, ``lt``, ``min_length``
and ``max_length`` are known. Fields the constructor does not take (``init=False``) are left out.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, get_args, get_origin

from gymnasium.spaces import Dict, Space, Tuple

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.typed.hints import choices, chosen, fields_of, is_container, is_model, name_of, split
from envweave_gym.typed.json_space import JsonOf
from envweave_gym.typed.scalars import MISFITS, Codec, scalar_codec, scalar_space


def space_of(model: type) -> Dict:
    """Return the ``Dict`` space of a dataclass or Struct; a new one at each call."""
    return copy.deepcopy(codec_of(model).space)


def to_model(model: type, value: Any) -> Any:
    """Convert a member of ``space_of(model)`` to a typed object of plain Python values."""
    codec = codec_of(model)
    if not codec.space.contains(value):
        raise InvalidArgument(f"to_model: {shown(value)} is not in {codec.space}")
    try:
        return codec.typed(value)
    except MISFITS as error:
        raise InvalidArgument(f"to_model: {error}") from error


def from_model(obj: Any) -> dict[str, Any]:
    """Convert a typed object to a member of ``space_of(type(obj))``."""
    codec = codec_of(type(obj))
    try:
        return codec.member(obj)
    except ValueError as error:
        raise InvalidArgument(f"from_model: {error}") from error


def codec_of(model: Any, left_out: frozenset[str] = frozenset()) -> Codec:
    """Return the codec of a model: its space, and the conversions to members and back.

    The fields in ``left_out`` are not in the space, but objects may have them.
    """
    if not is_model(model):
        raise InvalidArgument(f"{name_of(model)} is not a model; give a dataclass or a msgspec.Struct")
    try:
        return _model(model, left_out)
    except RecursionError:
        why = "a model that always holds another of its kind has no end; make that field Optional, or a list"
        raise InvalidArgument(f"{name_of(model)}: {why}") from None


@functools.cache
def _model(model: type, left_out: frozenset[str] = frozenset()) -> Codec:
    hints = {name: hint for name, hint in fields_of(model).items() if name not in left_out}
    codecs = {name: _codec(hint, f"{model.__name__}.{name}") for name, hint in hints.items()}

    def typed(value: Any) -> Any:
        return model(**{name: codec.typed(value[name]) for name, codec in codecs.items()})

    def member(obj: Any) -> dict[str, Any]:
        if not isinstance(obj, model):
            raise ValueError(f"{shown(obj)} is no {model.__name__}")
        return {name: codec.member(getattr(obj, name)) for name, codec in codecs.items()}

    return Codec(Dict({name: codec.space for name, codec in codecs.items()}), typed, member)


def _codec(hint: Any, where: str) -> Codec:
    """Return the codec of one field; ``where`` is the field's name in errors."""
    base, extras = split(hint)
    args = get_args(base)
    if not chosen(extras):
        if is_model(base):
            return _model(base)
        if get_origin(base) is tuple and args and args[-1] is not ...:
            return _tuple([_codec(arg, where) for arg in args])
    try:
        codec = scalar_codec(hint, _space(hint))
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
    """Return ``codec.member`` with errors that name the field (``where``) whose value does not fit."""

    def member(value: Any) -> Any:
        try:
            found = codec.member(value)
            fits, why = codec.space.contains(found), ""
        except MISFITS as error:
            found, fits, why = None, False, f": {error}"
        if not fits:
            raise ValueError(f"{where}: {shown(value)} is not in {codec.space}{why}")
        return found

    return member


def _space(hint: Any) -> Space[Any]:
    """Return the space of a type that is no model: the annotated one, or that of the table above."""
    base, extras = split(hint)
    if given := chosen(extras):
        return copy.deepcopy(given[0])
    if base is Any or (is_container(base) and not choices(base)):
        return JsonOf(hint)
    return scalar_space(hint)
