"""Spaces of actions and observations from the JSON schemas of their objects, such as those of OpenEnv's ``/schema``.

An object whose members are all simple becomes a ``Dict`` of simple spaces. Any other becomes JSON: the server checks
actions itself, and there is nothing to check in observations.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Dict

from envweave_gym.core.faults import shown
from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.hubs.openenv.json_codecs import BadSchema, Schema, codec_of, resolved
from envweave_gym.typed.scalars import Codec

_MAX_MEMBERS = 256
"""Limit of the members of an object that becomes a ``Dict``."""
_MAX_ALTERNATIVES, _MAX_DEPTH = 16, 4
_MAX_ARRAY_CHARS = 1 << 16
"""Limit of an array as JSON that stands for a member in samples."""
_EMPTY: dict[str, Any] = {
    "string": "",
    "integer": 0,
    "number": 0.0,
    "boolean": False,
    "array": [],
    "object": {},
}


class JsonObject(Json):
    """Space of JSON objects with certain members; their values are checked only where a simple space expresses them.

    Samples have the required members alone, with those of the first alternative. Those that have no simple space are
    copies of one example.
    """

    def __init__(
        self,
        codecs: Mapping[str, Codec] | None = None,
        required: Mapping[str, Any] | None = None,
        known: Iterable[str] | None = None,
        *,
        either: Iterable[Mapping[str, Any]] = (),
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Make the space, without a bound on its size.

        ``codecs`` belong to the simple members, ``required`` maps required members to examples, and ``known`` are the
        names of all members that are allowed, by default any. ``either`` are alternatives, as ``required`` is, of
        which one is required too.
        """
        self.codecs, self.required = dict(codecs or {}), dict(required or {})
        self.known = None if known is None else frozenset(known)
        self.either = tuple(dict(one) for one in either)
        self._nothing = self.encode(self._least())
        super().__init__(None, seed=seed)

    def _least(self) -> dict[str, Any]:
        """Return the examples of the members of a sample."""
        first = self.either[0] if self.either else dict[str, Any]()
        return {**self.required, **first}

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a JSON object with the required members, and no other than those known."""
        if not isinstance(x, dict) or not x.keys() >= self.required.keys() or not super().contains(x):
            return False
        if self.known is not None and not x.keys() <= self.known:
            return False
        if self.either and not any(x.keys() >= one.keys() for one in self.either):
            return False
        try:
            for name in x.keys() & self.codecs.keys():
                self.codecs[name].member(x[name])
        except ValueError:
            return False
        return True

    def _sample_value(self) -> Any:
        return {name: self._sampled(name, example) for name, example in self._least().items()}

    def _sampled(self, name: str, example: Any) -> Any:
        codec = self.codecs.get(name)
        if codec is None:
            return copy.deepcopy(example)
        codec.space.seed(int(self.np_random.integers(2**31)))
        return codec.typed(codec.space.sample())

    def __eq__(self, other: object, /) -> bool:
        return (
            super().__eq__(other)
            and isinstance(other, JsonObject)
            and (self.required, self.known, self.either) == (other.required, other.known, other.either)
            and {name: one.space for name, one in self.codecs.items()}
            == {name: one.space for name, one in other.codecs.items()}
        )

    def __repr__(self) -> str:
        members = ", ".join(sorted(self.known if self.known is not None else self.required))
        return f"JsonObject({members or '…'})"


def action_codec(schema: Any, skipped: frozenset[str] = frozenset()) -> Codec:
    """Return the codec of actions; members in ``skipped`` are no parts of the space.

    The space is a ``Dict`` if all members are required and simple, because a ``Dict`` has no optional members.
    """
    root, members, required = _members(schema, skipped)
    codecs = {name: codec_of(root, member) for name, member in members.items()}
    simple = {name: codec for name, codec in codecs.items() if codec is not None}
    if members and len(simple) == len(members) == len(required):
        return _dict_codec(simple)

    def examples(names: Iterable[str]) -> dict[str, Any]:
        return {name: _example(root, members.get(name, {}), simple.get(name)) for name in sorted(names)}

    either = [examples(names) for names in _alternatives(root, skipped)]
    closed = root.get("additionalProperties") is False
    known = {*members, *skipped} if closed else None
    space = JsonObject(simple, examples(required), known, either=either)
    return Codec(space, _same, partial(_checked, space))


def observation_codec(schema: Any, skipped: frozenset[str] = frozenset()) -> Codec:
    """Return the codec of observations: a ``Dict`` if there are no members but simple ones, else any JSON object.

    Each must be required or have a default, which stands for it where it is missing.
    """
    root, members, required = _members(schema, skipped)
    codecs = {name: codec_of(root, member) for name, member in members.items()}
    simple = {name: codec for name, codec in codecs.items() if codec is not None}
    defaults = {
        name: members[name]["default"]
        for name, codec in simple.items()
        if name not in required and _has_default(members[name], codec)
    }
    is_closed = root.get("additionalProperties") is False
    if not members or not is_closed or not members.keys() == simple.keys() == required | defaults.keys():
        return any_object()
    codec = _dict_codec(simple)
    return Codec(codec.space, codec.typed, partial(_completed, defaults, codec)) if defaults else codec


def _has_default(schema: Any, codec: Codec) -> bool:
    try:
        codec.member(schema["default"])
    except (TypeError, KeyError, ValueError, OverflowError, RecursionError):
        return False
    return True


def _completed(defaults: dict[str, Any], codec: Codec, value: Any) -> Any:
    return codec.member({**defaults, **value} if isinstance(value, dict) else value)


def any_object() -> Codec:
    """Return the codec of any JSON object."""
    space = JsonObject()
    return Codec(space, _same, partial(_checked, space))


def text_member(space: Any) -> str | None:
    """Return the name of the only required member of an action, if that is a text; else ``None``."""
    match space:
        case Dict():
            needed = list(space.spaces.items())
        case JsonObject():
            needed = [
                (name, one and one.space) for name in space.required for one in [space.codecs.get(name)]
            ]
        case _:
            return None
    return needed[0][0] if len(needed) == 1 and isinstance(needed[0][1], Unicode) else None


def known_members(space: Any) -> frozenset[str] | None:
    """Return the names of the members that an object of the space may have; ``None`` if it may have any."""
    return frozenset(space.spaces) if isinstance(space, Dict) else space.known


def _members(schema: Any, skipped: frozenset[str]) -> tuple[Schema, dict[str, Any], set[str]]:
    """Return the schema of an object with references resolved, its members and the names of the required ones."""
    if not isinstance(schema, dict):
        raise BadSchema(f"{shown(schema)} is no schema")
    root = {**schema, **resolved(schema, schema)}
    members, required = root.get("properties", {}), root.get("required", [])
    if not isinstance(members, dict):
        raise BadSchema(f"properties={shown(members)} is no object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise BadSchema(f"required={shown(required)} is no list of names")
    if len(members) > _MAX_MEMBERS or len(required) > _MAX_MEMBERS:
        return {}, {}, set()
    kept = {name: member for name, member in members.items() if name not in skipped}
    return root, kept, set(required) - skipped


def _alternatives(root: Schema, skipped: frozenset[str]) -> list[set[str]]:
    """Return the names of required members by alternative; none if ``anyOf`` says anything else."""
    found = root.get("anyOf", [])
    if not isinstance(found, list) or not 0 < len(found) <= _MAX_ALTERNATIVES:
        return []
    alternatives: list[set[str]] = []
    for one in found:
        names = one.get("required") if isinstance(one, dict) and one.keys() == {"required"} else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return []
        if len(names) > _MAX_MEMBERS or not set(names) - skipped:
            return []
        alternatives.append(set(names) - skipped)
    return alternatives


def _example(root: Schema, schema: Any, codec: Codec | None) -> Any:
    """Return a JSON value for a required member, which the server may refuse if the schema is complex."""
    if codec is not None:
        space = copy.deepcopy(codec.space)
        space.seed(0)
        return codec.typed(space.sample())
    found = resolved(root, schema)
    examples = found.get("examples")
    if "default" in found:
        return copy.deepcopy(found["default"])  # as samples are, so that one that nests too deep fails here
    if isinstance(examples, list) and examples:
        return copy.deepcopy(examples[0])
    try:
        return _Examples(root).of(found)
    except BadSchema:  # the members of such values are not checked either
        kind = found.get("type")
        return copy.deepcopy(_EMPTY.get(kind)) if isinstance(kind, str) else None


class _Examples:
    """Builds the smallest values of nested schemas; their number and depth are bounded, as schemas may be endless."""

    def __init__(self, root: Schema) -> None:
        self._root, self._left = root, _MAX_MEMBERS

    def of(self, schema: Any, depth: int = 0) -> Any:
        """Return an object with its required members, an array with its least number of items, or an empty value."""
        found, self._left = resolved(self._root, schema), self._left - 1
        options = found.get("anyOf", found.get("oneOf"))
        if isinstance(options, list) and options:
            found = resolved(self._root, options[0])
        kind = found.get("type")
        if depth < _MAX_DEPTH and self._left > 0:
            codec = codec_of(self._root, found) if depth else None
            if codec is not None:
                return _example(self._root, found, codec)
            if kind == "object":
                return self._object(found, depth)
            if kind == "array":
                return self._array(found, depth)
        return copy.deepcopy(_EMPTY.get(kind)) if isinstance(kind, str) else None

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        members, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(members, dict) or not isinstance(required, list):
            raise BadSchema("an object without members")
        names = [name for name in required if isinstance(name, str) and name in members]
        return {name: self.of(members[name], depth + 1) for name in names if self._left > 0}

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        length, items = schema.get("minItems", 0), schema.get("items", {})
        first = schema.get("prefixItems")
        if isinstance(first, list):
            return [self.of(one, depth + 1) for one in first[:_MAX_MEMBERS] if self._left > 0]
        if type(length) is not int or not 0 < length <= _MAX_MEMBERS:
            return []
        one = self.of(items, depth + 1)
        if len(json.dumps(one)) * length > _MAX_ARRAY_CHARS:
            return []
        return [copy.deepcopy(one) for _ in range(length)]


def _dict_codec(codecs: dict[str, Codec]) -> Codec:
    space = Dict({name: codec.space for name, codec in codecs.items()})
    return Codec(space, partial(_to_object, codecs), partial(_from_object, codecs))


def _to_object(codecs: dict[str, Codec], member: Any) -> dict[str, Any]:
    return {name: codec.typed(member[name]) for name, codec in codecs.items()}


def _from_object(codecs: dict[str, Codec], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != codecs.keys():
        found = ", ".join(map(str, value)) if isinstance(value, dict) else shown(value)
        raise ValueError(f"it has not exactly the members {', '.join(codecs)}, but {found or 'none'}")
    members: dict[str, Any] = {}
    for name, codec in codecs.items():
        try:
            members[name] = codec.member(value[name])
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{name}: {error}") from None
    return members


def _same(value: Any) -> Any:
    return value


def _checked(space: Any, value: Any) -> Any:
    if not space.contains(value):
        raise ValueError(f"{shown(value)} is not in {space}")
    return value
