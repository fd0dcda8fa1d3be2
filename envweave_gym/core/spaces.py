"""Gymnasium spaces of texts, JSON values and chats that work with every function and vector of Gymnasium.

Gymnasium's own ``Text`` lists every allowed character, refuses all others, and returns only ``'000…'`` under
``AsyncVectorEnv`` with default arguments. :class:`Unicode` takes any text up to a length and travels through
shared memory as UTF-8; :class:`Json` is any JSON value and :class:`Chat` a list of role/content messages, on
the same codec. They subclass ``Text``, so ``isinstance(space, Text)`` keeps working. They and their
subclasses are registered with every function that Gymnasium dispatches on spaces.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import string
from collections.abc import Callable
from ctypes import c_uint8
from typing import Any

import gymnasium.spaces.utils as flat
import gymnasium.vector.utils as batched
import gymnasium.wrappers.utils as zeros
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.spaces import Box, Dict, Space, Text, Tuple
from numpy.typing import NDArray

from envweave_gym.core.faults import shown

UNBOUNDED = 2**31 - 1
"""``max_length`` of a text space without a bound (``Unicode(None)``), which cannot live in shared memory."""

_HEADER = 4  # bytes of the length before each text
_SAMPLED = string.ascii_letters + string.digits + " .,;:!?'\"()[]{}+-*/=<>_#\n" + "äéß☃中文𝄞"
_SAMPLE_LENGTH = 32
_ALPHABET = {
    name: value for name, value in vars(Text(1, charset=_SAMPLED)).items() if name.startswith("_char")
}
"""The character tables of ``Text``, 17 kB each, shared by all our spaces."""
_SCALARS = (str, int, float, type(None))
_DEPTH = 100  # levels of nesting


class Unicode(Text):
    """Any text of ``min_length`` to ``max_length`` characters that UTF-8 can hold (no lone surrogates)."""

    def __init__(
        self,
        max_length: int | None = 4096,
        *,
        min_length: int = 0,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Make the space; ``max_length=None`` means no bound, which needs ``AsyncVectorEnv(shared_memory=False)``."""
        bound = UNBOUNDED if max_length is None else max_length
        super().__init__(bound, min_length=min_length, charset=_SAMPLED, seed=seed)
        vars(self).update(_ALPHABET)  # replaces the tables that Text has just built

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _register(cls)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the space, but share its character tables with the copy.

        Gymnasium makes a copy for each row of a vector, and the tables take 17 kB.
        """
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            vars(copied)[name] = value if name in _ALPHABET else copy.deepcopy(value, memo)
        return copied

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a text of the right length that UTF-8 can hold."""
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length and encodable(x)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return a random text, a short one unless a mask gives its length."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        longest = min(self.max_length, self.min_length + _SAMPLE_LENGTH)
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(self.np_random.choice(list(_SAMPLED), size=length))

    def encode(self, x: Any) -> str:
        """Return a member as text, for shared memory; a text is returned as it is, subclasses encode other values."""
        return x

    def decode(self, text: str) -> Any:
        """Return the member that ``text`` encodes, the inverse of :meth:`encode`."""
        return text

    @property
    def is_np_flattenable(self) -> bool:
        """Whether the space has a bound, so that its members fit a flat array of bytes."""
        return self.max_length < UNBOUNDED

    def __eq__(self, other: object, /) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, Unicode)
            and (self.min_length, self.max_length) == (other.min_length, other.max_length)
        )

    def __repr__(self) -> str:
        longest = self.max_length if self.is_np_flattenable else None
        shortest = f", min_length={self.min_length}" if self.min_length else ""
        return f"{type(self).__name__}({longest}{shortest})"


def encodable(text: str) -> bool:
    """Return whether UTF-8 can hold ``text``: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Texts in shared memory and in flat arrays: 4 bytes of length and UTF-8, in a slot that fits the longest
# text.


def _slot(space: Unicode) -> int:
    if not space.is_np_flattenable:
        raise TypeError(
            f"As {space} has a dynamic shape so its not possible to make a static shared memory. "
            "Give it a max_length, or disable `shared_memory` of `AsyncVectorEnv`."
        )
    return _HEADER + 4 * space.max_length  # UTF-8 takes at most 4 bytes a character


def _write(slot: NDArray[np.uint8], text: str) -> None:
    data = text.encode()
    if len(data) > len(slot) - _HEADER:
        raise ValueError(f"a text of {len(text)} characters is longer than its space allows: {shown(text)}")
    slot[:_HEADER] = np.frombuffer(len(data).to_bytes(_HEADER, "little"), np.uint8)
    slot[_HEADER : _HEADER + len(data)] = np.frombuffer(data, np.uint8)


def _read(slot: NDArray[np.uint8]) -> str:
    size = int.from_bytes(slot[:_HEADER].tobytes(), "little")
    return slot[_HEADER : _HEADER + size].tobytes().decode()


def _memory(shared: Any, space: Unicode) -> NDArray[np.uint8]:
    return np.frombuffer(shared.get_obj(), np.uint8).reshape(-1, _slot(space))


class _LiveTexts(tuple[Any, ...]):
    """A tuple that reads its texts from shared memory at every access.

    ``AsyncVectorEnv`` reads its memory once and deep-copies the result at every step, so the result must read
    again. Copies are plain tuples. With ``copy=False`` use ``tuple(texts)`` for C code that reads the cells
    of a tuple directly, as ``str.join`` does.
    """

    _space: Unicode
    _slots: NDArray[np.uint8]

    def __new__(cls, space: Unicode, slots: NDArray[np.uint8]) -> _LiveTexts:
        self = super().__new__(cls, (None,) * len(slots))
        self._space, self._slots = space, slots
        return self

    def now(self) -> tuple[Any, ...]:
        """Return the texts that the memory holds now."""
        return tuple(self._space.decode(_read(slot)) for slot in self._slots)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[Any, ...]:
        return self.now()

    def __reduce__(self) -> Any:
        return tuple, (self.now(),)


def _look_again(name: str) -> Callable[..., Any]:
    """Return a method that reads the texts from shared memory and calls the method ``name`` of ``tuple`` on them."""

    def method(self: _LiveTexts, *args: Any) -> Any:
        return getattr(self.now(), name)(*(arg.now() if isinstance(arg, _LiveTexts) else arg for arg in args))

    return method


# Methods of tuple that need not read the memory.
_ITSELF = {"__new__", "__len__", "__getattribute__", "__getnewargs__", "__class_getitem__", "__doc__"}
for _name in vars(tuple).keys() - _ITSELF:
    setattr(_LiveTexts, _name, _look_again(_name))


def _create_shared(space: Unicode, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array(c_uint8, n * _slot(space))


def _read_shared(space: Unicode, shared: Any, n: int = 1) -> tuple[Any, ...]:
    return _LiveTexts(space, _memory(shared, space)[:n])


def _write_shared(space: Unicode, index: int, value: Any, shared: Any) -> None:
    _write(_memory(shared, space)[index], space.encode(value))


def _create_empty(space: Unicode, n: int = 1, fn: Any = np.zeros) -> tuple[Any, ...]:
    return tuple(_zero(space) for _ in range(n))


def _batch_differing(spaces: list[Unicode]) -> Tuple[Any]:
    return Tuple([copy.deepcopy(space) for space in spaces], seed=copy.deepcopy(spaces[0].np_random))


def _same_kind(space: Unicode, other: Any) -> bool:
    return type(space) is type(other) and space.max_length == other.max_length


def _flatdim(space: Unicode) -> int:
    if not space.is_np_flattenable:
        raise ValueError(f"{space} has no bound, so it has no flat size; give it a max_length")
    return _slot(space)


def _flatten_space(space: Unicode) -> Space[Any]:
    return Box(0, 255, (_slot(space),), np.uint8) if space.is_np_flattenable else copy.deepcopy(space)


def _flatten(space: Unicode, x: Any) -> Any:
    if not space.is_np_flattenable:
        return x
    flattened = np.zeros(_slot(space), np.uint8)
    _write(flattened, space.encode(x))
    return flattened


def _unflatten(space: Unicode, x: Any) -> Any:
    return space.decode(_read(np.asarray(x).astype(np.uint8))) if space.is_np_flattenable else x


def _zero(space: Unicode) -> Any:
    return _SAMPLED[0] * space.min_length or space.decode("")  # the shortest member


def _register(kind: type[Unicode]) -> None:
    """Register a space type: Gymnasium dispatches some functions on the exact type."""
    batched.create_shared_memory.register(kind, _create_shared)
    batched.read_from_shared_memory.register(kind, _read_shared)
    batched.write_to_shared_memory.register(kind, _write_shared)
    batched.create_empty_array.register(kind, _create_empty)
    batched.batch_differing_spaces.register(kind, _batch_differing)
    flat.is_space_dtype_shape_equiv.register(kind, _same_kind)
    flat.flatdim.register(kind, _flatdim)
    flat.flatten_space.register(kind, _flatten_space)  # pyright: ignore[reportCallIssue, reportArgumentType]
    flat.flatten.register(kind, _flatten)
    flat.unflatten.register(kind, _unflatten)
    zeros.create_zero_array.register(kind, _zero)
    if hasattr(flat, "_flat_dtype"):  # Gymnasium below 1.4 asks the flattened space for its dtype
        flat._flat_dtype.register(kind, lambda space: np.dtype(np.uint8))


_register(Unicode)


class Json(Unicode):
    """Any JSON value whose compact text is at most ``max_length`` characters long.

    NaN, infinity, tuples, keys that are not texts and nesting deeper than 100 levels are refused: they would
    change on their way to another process, or be lost.
    """

    _nothing = "null"

    def __init__(
        self, max_length: int | None = 65536, *, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(max_length, seed=seed)
        if self.max_length < len(self._nothing):
            raise ValueError(f"{self} holds nothing; give it a max_length of at least {len(self._nothing)}")

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is JSON (dict with text keys, list, str, number, bool, None) and not too long."""
        try:
            return _is_json(x, _DEPTH) and super().contains(self.encode(x))
        except ValueError:  # NaN, infinity, or an int with more digits than Python formats
            return False

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Return a small random JSON value."""
        if mask is not None or probability is not None:
            raise ValueError(f"{self} takes no mask and no probability for sampling")
        value = self._sample_value()
        return value if self.contains(value) else self.decode("")

    def _sample_value(self) -> Any:
        rng = self.np_random
        scalars: list[Any] = [None, True, int(rng.integers(-100, 100)), float(rng.normal()), "text ☃"]
        keys = "abcd"[: rng.integers(0, 5)]
        members = {key: scalars[rng.integers(len(scalars))] for key in keys}
        shapes: list[Any] = [scalars[rng.integers(len(scalars))], members, list(members.values())]
        return shapes[rng.integers(len(shapes))]

    def encode(self, x: Any) -> str:
        """Return the canonical JSON text of ``x``."""
        return json.dumps(x, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    def decode(self, text: str) -> Any:
        """Decode a text; an empty one, as in fresh shared memory, gives ``None``, or ``[]`` for a chat."""
        return json.loads(text or self._nothing)


class Chat(Json):
    """A list of chat messages: dicts of ``role``, ``content`` and any other JSON fields."""

    _nothing = "[]"

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a list of messages with text in ``role`` and in ``content``."""
        return isinstance(x, list) and all(map(_is_message, x)) and super().contains(x)

    def _sample_value(self) -> Any:
        rng = self.np_random
        roles = ("system", "user", "assistant")
        return [
            {"role": roles[rng.integers(3)], "content": "hello ☃"[: rng.integers(8)]}
            for _ in range(rng.integers(0, 4))
        ]


def _is_json(x: Any, depth: int) -> bool:
    if isinstance(x, _SCALARS):
        return True
    if depth and isinstance(x, list):
        return all(_is_json(item, depth - 1) for item in x)
    if depth and isinstance(x, dict):
        return all(isinstance(key, str) and _is_json(item, depth - 1) for key, item in x.items())
    return False


def _is_message(x: Any) -> bool:
    return isinstance(x, dict) and isinstance(x.get("role"), str) and isinstance(x.get("content"), str)


def placeholder(space: Space[Any]) -> Any:
    """Return an all-zero member of ``space``: the observation of an episode that could not start.

    For a space of another package, of which Gymnasium has no zero, it is ``None``.
    """
    try:
        return zeros.create_zero_array(space)
    except CustomSpaceError:
        parts = space.spaces if isinstance(space, Dict | Tuple) else None
    if isinstance(parts, dict):
        return {key: placeholder(part) for key, part in parts.items()}
    return None if parts is None else tuple(placeholder(part) for part in parts)
