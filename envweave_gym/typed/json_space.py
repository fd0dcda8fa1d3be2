"""The space ``JsonOf``: the JSON values of a Python type, as msgspec encodes them."""

from __future__ import annotations

import copyreg
import functools
import math
import types
from collections.abc import Callable
from typing import Any, get_args, get_origin

import msgspec
import numpy as np

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.spaces import Json
from envweave_gym.typed.hints import (
    UNIONS,
    bounds_in,
    chosen,
    fields_of,
    is_container,
    is_model,
    name_of,
    split,
)
from envweave_gym.typed.scalars import MISFITS, plain, scalar_codec, scalar_space


class JsonOf(Json):
    """Space of JSON values that msgspec can convert to a Python type: ``JsonOf(list[int])``, ``JsonOf(str | None)``."""

    def __init__(
        self, hint: Any, max_length: int | None = 65536, *, seed: int | np.random.Generator | None = None
    ) -> None:
        """Make the space; ``hint`` is any type that a field of a model can have, except arrays."""
        _check(hint, set())
        msgspec.json.Decoder(hint)
        self.hint = hint
        self._nothing = self.encode(plain(_draw(hint, np.random.default_rng(0), 0)))
        super().__init__(max_length, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is JSON from which a value of the type can be read."""
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


def _check(hint: Any, seen: set[Any]) -> None:
    """Raise for a type with a part that has no JSON form; the error names the part.

    ``seen`` are types that were checked already, as types may contain themselves.
    """
    base, extras = split(hint)
    if chosen(extras):
        raise InvalidArgument(
            f"{name_of(base)} is a part of JSON here and has no space; use msgspec.Meta there"
        )
    if is_model(base):
        if base not in seen:  # a model may contain itself
            seen.add(base)
            for inner in fields_of(base).values():
                _check(inner, seen)
    elif is_container(base):
        for inner in _parts(base):
            _check(inner, seen)
    elif base is not Any:
        scalar_space(hint)
    bounds_in(extras)  # refuses a bound that no space expresses


def _draw(hint: Any, rng: np.random.Generator, depth: int) -> Any:
    """Return a random value of a type.

    ``depth`` limits nesting: at 0 containers are as short as allowed, and optional values are ``None``.
    """
    base, extras = split(hint)
    origin, args = get_origin(base) or base, get_args(base)
    if base is Any:
        return Json(seed=rng).sample() if depth > 0 else None
    if is_model(base):
        return base(**{name: _draw(inner, rng, depth - 1) for name, inner in fields_of(base).items()})
    if not is_container(base):
        space = scalar_space(hint)
        space.seed(int(rng.integers(2**31)))
        return scalar_codec(hint, space).typed(space.sample())
    parts = _parts(base)
    if origin in UNIONS:
        nothing = types.NoneType in parts and depth <= 0
        return None if nothing else _draw(parts[rng.integers(len(parts))], rng, depth)
    if origin is tuple and args and args[-1] is not ...:
        return tuple(_draw(part, rng, depth - 1) for part in parts)
    bounds = bounds_in(extras)
    fewest = bounds.get("min_length", 0)
    most = min(fewest + 2 if depth > 0 else fewest, bounds.get("max_length", math.inf))
    items = [_draw(parts[0], rng, depth - 1) for _ in range(rng.integers(fewest, most, endpoint=True))]
    return {f"key{i}": item for i, item in enumerate(items)} if origin is dict else origin(items)


def _parts(base: Any) -> list[Any]:
    """Return the types of a container's items, or of a union's arms."""
    parts = [arg for arg in get_args(base) if arg is not ...]
    if get_origin(base) is dict and split(parts.pop(0))[0] not in (str, Any):
        raise InvalidArgument(f"{name_of(base)} is no JSON, where keys are text; use dict[str, …]")
    return parts or [Any]
