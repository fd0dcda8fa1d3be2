"""Spaces from JSON schemas: typed where those are simple, JSON otherwise, errors for bad ones, and bounded work."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st
from openenv_servers import SCHEMA, Talk, openenv_server

import envweave_gym as ew
from envweave_gym.core.faults import NotAvailable
from envweave_gym.core.spaces import Unicode
from envweave_gym.hubs.openenv.json_codecs import BadSchema, codec_of
from envweave_gym.hubs.openenv.json_schema_space import JsonObject, action_codec, observation_codec

SIMPLE: list[tuple[dict[str, Any], Any, list[Any], list[Any]]] = [
    ({"type": "string"}, Unicode(None), ["", "a"], [1, None, "\ud800"]),
    ({"type": "string", "minLength": 1, "maxLength": 3}, Unicode(3, min_length=1), ["a"], ["", "abcd"]),
    ({"type": "boolean"}, Discrete(2), [True, False], [0, "true"]),
    ({"type": "integer"}, Box(-np.inf, np.inf, (1,), np.int64), [0, -5, 2**60], [1.0, True, "1", 10**30]),
    ({"type": "integer", "minimum": 3, "maximum": 7}, Discrete(5, start=3), [3, 7], [2, 8, 3.0]),
    ({"type": "integer", "exclusiveMinimum": 2, "maximum": 7.5}, Discrete(5, start=3), [3, 7], [2, 8]),
    ({"type": "integer", "minimum": 0}, Box(0, np.inf, (1,), np.int64), [0, 9], [-1]),
    ({"type": "number"}, Box(-np.inf, np.inf, (1,), np.float64), [0, 1.5], ["1", True, None]),
    ({"type": "number", "minimum": 1, "exclusiveMinimum": 0, "maximum": 2}, None, [1, 2.0], [0.5, 2.1]),
    ({"enum": ["up", "down", 1, True]}, Discrete(4), ["up", 1, True], ["left", 1.0, False, [1]]),
    ({"const": "x"}, Discrete(1), ["x"], ["y"]),
    (
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        Box(-np.inf, np.inf, (2,), np.float64),
        [[1, 2.5]],
        [[1], [1, "2"], [1, [2]], 1],
    ),
    (
        {
            "type": "array",
            "minItems": 2,
            "maxItems": 2,
            "items": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1,
                "items": {"type": "integer", "minimum": 0},
            },
        },
        Box(0, np.inf, (2, 1), np.int64),
        [[[1], [2]]],
        [[[1], [-1]], [[1], 2], [[1], [2, 3]]],
    ),
]
COMPLEX: list[Any] = [
    {},
    True,
    {"type": "null"},
    {"type": "object"},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"type": "array", "items": {"type": "number"}},
    {"type": "array", "minItems": 10**8, "maxItems": 10**8, "items": {"type": "number"}},
    {"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "string"}},
    {"type": "integer", "minimum": 10**30},
    {"type": "integer", "maximum": -(10**400)},
    {"type": "string", "minLength": 10**10, "maxLength": 10**11},
    {"enum": [[1], {}]},
    {"enum": list(range(5000))},
]
BAD: list[Any] = [
    5,
    {"type": 5},
    {"type": "text"},
    {"type": ["string", "text"]},
    {"type": "string", "maxLength": "x"},
    {"type": "string", "minLength": -1},
    {"type": "string", "minLength": 5, "maxLength": 4},
    {"type": "integer", "minimum": "x"},
    {"type": "integer", "minimum": True},
    {"type": "integer", "minimum": 5, "maximum": 4},
    {"type": "integer", "minimum": 0.2, "maximum": 0.8},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "array", "minItems": "x", "items": {"type": "number"}},
    {"type": "array", "minItems": 2, "maxItems": 1, "items": {"type": "number"}},
    {"enum": 5},
    {"enum": []},
    {"enum": ["a", "a"]},
    {"anyOf": 5},
    {"$ref": 5},
    {"$ref": "#/$defs/missing"},
    {"$ref": "https://example.com/schema.json"},
]


@pytest.mark.parametrize(("schema", "space", "members", "others"), SIMPLE, ids=lambda one: str(one)[:40])
def test_simple_schemas_have_simple_spaces(
    schema: dict[str, Any], space: Any, members: list[Any], others: list[Any]
) -> None:
    codec = codec_of({}, schema)
    assert codec is not None
    assert space is None or codec.space == space
    codec = pickle.loads(pickle.dumps(codec))
    for value in members:
        member = codec.member(value)
        assert member in codec.space
        assert codec.typed(member) == value
    for value in others:
        with pytest.raises((ValueError, OverflowError)):
            codec.member(value)
    codec.space.seed(1)
    for _ in range(5):
        member = codec.space.sample()
        assert codec.member(json.loads(json.dumps(codec.typed(member)))) in codec.space


@pytest.mark.parametrize("schema", COMPLEX, ids=lambda one: str(one)[:40])
def test_other_schemas_have_none(schema: Any) -> None:
    assert codec_of({}, schema) is None


@pytest.mark.parametrize("schema", BAD, ids=lambda one: str(one)[:40])
def test_a_bad_schema_is_the_servers_error_and_says_a_way_out(schema: Any) -> None:
    with pytest.raises(BadSchema):
        codec_of({}, schema)
    action = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    with openenv_server(schema={**SCHEMA, "action": action}) as server:
        with pytest.raises(
            NotAvailable, match=rf"127\.0\.0\.1:{server.port}: its /schema .*give spaces='json'"
        ):
            ew.make(server.name)
        ew.make(server.name, spaces="json").close()


def test_bounds_too_far_apart_to_draw_between_make_json() -> None:
    number = {"type": "number", "minimum": -1e308, "maximum": 1e308}
    pair = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    for members in ({"x": number}, {"x": pair}, {"x": number, "y": {"type": "object"}}):
        action = {"type": "object", "properties": members, "required": list(members)}
        with openenv_server(schema={**SCHEMA, "action": action}) as server, ew.make(server.name) as env:
            assert env.action_space.sample() in env.action_space
            assert isinstance(env.action_space, JsonObject)


@pytest.mark.parametrize("depth", [500, 900])
def test_an_example_that_nests_too_deep_is_the_servers_error(depth: int) -> None:
    deep = json.loads("[" * depth + "]" * depth)
    for key, value in (("default", deep), ("examples", [deep])):
        member = {"type": "array", key: value}
        action = {"type": "object", "properties": {"x": member}, "required": ["x"]}
        with openenv_server(schema={**SCHEMA, "action": action}) as server:
            with pytest.raises(NotAvailable, match=r"its /schema .*give spaces='json'"):
                ew.make(server.name)
            ew.make(server.name, spaces="json").close()


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"action": 5, "observation": {}}',
        b'{"action": {"properties": []}, "observation": {}}',
        b'{"action": {"required": 5}, "observation": {}}',
        b'{"action": {}, "observation": {}, "reset_observation": 5}',
        b'{"action": {}}',
        b'{"x": "' + b"y" * (5 << 20) + b'"}',
    ],
    ids=lambda document: document[:50],
)
def test_what_is_no_document_of_schemas(document: bytes) -> None:
    said = r"http://127\.0\.0\.1:\d+: its /schema"
    with openenv_server(schema=document) as server, pytest.raises(NotAvailable, match=said):
        ew.make(server.name)


def test_an_endless_document_ends_at_its_limit_or_at_the_deadline() -> None:
    def endless(talk: Talk) -> None:
        talk.client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            talk.client.sendall(b" " * 65536)

    def slow(talk: Talk) -> None:
        talk.client.sendall(b"HTTP/1.1 200 OK\r\n\r\n ")
        talk.client.recv(1)

    with openenv_server() as server:
        server.documents["/schema"] = (200, endless)
        with pytest.raises(NotAvailable, match="larger than"):
            ew.make(server.name)
        server.documents["/schema"] = (200, slow)
        with pytest.raises(TimeoutError, match="did not answer"):
            ew.make(server.name, call_deadline=0.3)


NESTED: dict[str, Any] = {
    "$defs": {"Node": {"type": "object", "required": ["left", "right"], "properties": {}}},
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "size": {"type": "integer"}},
    "required": ["root", "size"],
}
NESTED["$defs"]["Node"]["properties"] = {name: {"$ref": "#/$defs/Node"} for name in ("left", "right")}


def test_a_schema_that_requires_itself_costs_nothing() -> None:
    codec = action_codec(NESTED)
    assert isinstance(codec.space, JsonObject)
    assert codec.space.sample().keys() == {"root", "size"}
    assert {"root": {}, "size": 1} in codec.space
    assert {"root": {}, "size": "1"} not in codec.space
    assert {"root": {}} not in codec.space


def test_references_that_go_round_are_bad() -> None:
    with pytest.raises(BadSchema, match="lead nowhere"):
        codec_of({"$defs": {"a": {"$ref": "#/$defs/a"}}}, {"$ref": "#/$defs/a"})


def test_optional_members_make_an_action_json() -> None:
    repl = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "metadata": {"type": "object"},
            "code": {"type": "string", "default": ""},
            "is_final": {"type": "boolean", "default": False},
            "final_answer": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
    }
    space = action_codec(repl, frozenset({"metadata"})).space
    for action in ({}, {"code": "x"}, {"is_final": True, "final_answer": "1"}, {"metadata": {}}):
        assert action in space
    for action in ({"code": 1}, {"other": 1}, [], "x", {"is_final": "yes"}):
        assert action not in space
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    assert space.sample() in space
    assert list(gym.vector.utils.iterate(gym.vector.utils.batch_space(space, 2), ({}, {"code": "x"}))) == [
        {},
        {"code": "x"},
    ]


def test_one_of_several_required_members_is_in_every_sample() -> None:
    number = {"anyOf": [{"type": "number"}, {"enum": ["nan"]}]}
    nested = {
        "type": "object",
        "properties": {
            "by": {"type": "integer", "minimum": 3, "maximum": 5},
            "at": {"type": "array", "items": number, "minItems": 2},
            "of": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "boolean"}]},
            "more": {"type": "string"},
        },
        "required": ["by", "at", "of"],
    }
    members = {"action": nested, "message": {"type": "string"}}
    either = {"anyOf": [{"required": ["action"]}, {"required": ["message"]}]}
    schema = {
        "type": "object",
        "properties": members,
        "required": [],
        "additionalProperties": False,
        **either,
    }
    space = pickle.loads(pickle.dumps(action_codec(schema).space))
    sample = space.sample()
    assert sample in space
    assert 3 <= sample["action"]["by"] <= 5
    assert [type(one) for one in sample["action"]["at"]] == [float, float]
    assert sample["action"]["of"][0] == "x"
    assert sample.keys() == {"action"}
    assert sample["action"].keys() == {"by", "at", "of"}
    assert {"message": "a"} in space
    for action in ({}, {"other": 1}, {"message": 1}):
        assert action not in space
    assert space == action_codec(schema).space
    assert space != action_codec({**schema, "anyOf": []}).space
    for unknown in (5, [], [{"type": "object"}], [{"required": 5}], [{"required": []}, {"required": ["x"]}]):
        assert {} in action_codec({**schema, "anyOf": unknown}).space


def test_observations_are_typed_if_all_members_are_simple() -> None:
    space = observation_codec(SCHEMA["observation"], frozenset({"reward", "done", "metadata"})).space
    assert isinstance(space, Dict)
    assert list(space) == ["count", "text"]
    more = {"properties": {"count": {"type": "integer"}, "rows": {"type": "array"}}}
    assert observation_codec(more).space == JsonObject()
    assert observation_codec({"properties": {}}).space == JsonObject()


def test_observations_are_typed_only_if_no_valid_one_is_another() -> None:
    closed = {"additionalProperties": False, "properties": {"count": {"type": "integer"}}}
    assert isinstance(observation_codec({**closed, "required": ["count"]}).space, Dict)
    for additional in ({}, {"additionalProperties": True}):
        opened = {"properties": closed["properties"], "required": ["count"], **additional}
        assert observation_codec(opened).member({"count": 1, "more": 2}) == {"count": 1, "more": 2}
    assert observation_codec(closed).member({}) == {}
    for default in ("x", None):
        wrong = {**closed, "properties": {"count": {"type": "integer", "default": default}}}
        assert observation_codec(wrong).member({}) == {}


def test_a_missing_member_of_an_observation_is_its_default() -> None:
    members = {"count": {"type": "integer"}, "text": {"type": "string", "default": "none"}}
    schema = {"additionalProperties": False, "properties": members, "required": ["count"]}
    codec = pickle.loads(pickle.dumps(observation_codec(schema)))
    assert isinstance(codec.space, Dict)
    assert codec.member({"count": 1}) == {"count": np.array([1]), "text": "none"}
    assert codec.member({"count": 1, "text": "x"})["text"] == "x"
    for wrong in ({}, {"text": "x"}, {"count": 1, "more": 1}, [], None):
        with pytest.raises(ValueError, match=r"members|it has not"):
            codec.member(wrong)


KEYWORDS = [
    *(
        "type",
        "properties",
        "required",
        "items",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
    ),
    *("enum", "const", "anyOf", "allOf", "$ref", "minLength", "maxLength", "additionalProperties", "default"),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["object", "string", "array", "#", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_any_json_is_a_space_or_a_bad_schema(schema: Any) -> None:
    for make in (action_codec, observation_codec):
        try:
            codec = make(schema)
        except BadSchema:
            continue
        codec.space.seed(1)
        member = codec.space.sample()
        assert member in codec.space or isinstance(codec.space, JsonObject)
        codec.typed(member)
