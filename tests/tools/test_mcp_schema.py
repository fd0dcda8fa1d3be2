"""What servers say of their tools, as Python signatures."""

from __future__ import annotations

from typing import Any

import pytest

from envweave_gym.tools import ToolError
from envweave_gym.tools.mcp.tool_schema import LONGEST_DOC, BadSchema, annotation, listed_tool, result_of

ROOT: dict[str, Any] = {
    "$defs": {
        "Size": {"type": "string", "enum": ["s", "l"]},
        "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
        "Round": {"$ref": "#/$defs/Round"},
        "List": {"type": "array", "items": {"$ref": "#/$defs/List"}},
    }
}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "null"}, "None"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}, "list[list[bool]]"),
        ({"type": "object"}, "dict"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "additionalProperties": False}, "dict"),
        ({"properties": {"a": {}}}, "dict"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "string"}]}, "str | int"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"oneOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "Literal['s', 'l'] | None"),
        ({"allOf": [{"$ref": "#/$defs/Size"}]}, "Literal['s', 'l']"),
        ({"enum": ["a", 1, None, True]}, "Literal['a', 1, None, True]"),
        ({"enum": [1.5]}, "Any"),
        ({"enum": []}, "Any"),
        ({"const": "x"}, "Literal['x']"),
        ({"$ref": "#/$defs/Node"}, "dict"),
        ({"$ref": "#/$defs/Round"}, "Any"),
        ({"$ref": "#/$defs/Nothing"}, "Any"),
        ({"$ref": "https://example.com/schema"}, "Any"),
        ({"type": "thing"}, "Any"),
        ({"type": 3}, "Any"),
        (True, "Any"),
        (None, "Any"),
    ],
)
def test_schemas_are_annotations(schema: Any, text: str):
    assert annotation(schema, ROOT) == text


def test_a_schema_that_contains_itself_ends():
    assert annotation({"$ref": "#/$defs/List"}, ROOT).startswith("list")


@pytest.mark.parametrize("key", ["anyOf", "allOf"])
def test_a_schema_that_contains_itself_often_ends(key: str):
    inner = {"type": "array", "items": {"$ref": "#/$defs/often"}}
    schema = {"type": "object", "properties": {"x": inner}, "$defs": {"often": {key: [inner] * 30}}}
    (parameter,) = listed_tool({"name": "t", "inputSchema": schema}).parameters
    assert parameter.type.startswith("list")


def test_the_shape_of_a_list_that_contains_itself_ends():
    inner = {"type": "array", "items": {"$ref": "#/$defs/again"}}
    schema = {"type": "object", "properties": {"x": inner}, "$defs": {"again": inner}}
    (parameter,) = listed_tool({"name": "t", "inputSchema": schema}).parameters
    assert (parameter.type.count("list"), parameter.doc) == (9, "")


def entry(properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties or {}, "required": more.pop("required", [])}
    return {"name": "t", "inputSchema": schema, **more}


def test_required_parameters_come_first_and_odd_names_are_mapped():
    tool = listed_tool(
        entry(
            {
                "max-results": {"type": "integer", "default": 5},
                "class": {"type": "string"},
                "max_results": {"type": "string"},
                "2nd": {},
            },
            required=["class"],
        )
    )
    assert [each.name for each in tool.parameters] == ["class_", "max_results", "max_results_", "_2nd"]
    assert tool.originals == {
        "max_results": "max-results",
        "class_": "class",
        "max_results_": "max_results",
        "_2nd": "2nd",
    }
    assert [each.default for each in tool.parameters] == [None, 5, None, None]


def test_the_docstring_lists_arguments_and_result():
    edits = {
        "type": "array",
        "items": {"type": "object", "properties": {"old": {"type": "string"}, "new": {"type": "string"}}},
        "description": "What to\n  change.",
    }
    output = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    tool = listed_tool(entry({"edits": edits, "dry": {}}, description=" Edits. ", outputSchema=output))
    assert tool.doc == (
        "Edits.\n\n"
        "Args:\n"
        "    edits (list[dict]): What to change. ([{'old': str, 'new': str}])\n"
        "    dry (Any)\n\n"
        "Returns:\n"
        "    {'ok': bool}"
    )
    assert tool.returns == "dict"


def test_the_return_type_is_that_of_a_wrapped_result():
    output = {"type": "object", "properties": {"result": {"type": "array", "items": {"type": "integer"}}}}
    assert listed_tool(entry(outputSchema=output)).returns == "list[int]"


def test_long_docstrings_are_cut():
    doc = listed_tool(entry(description="x" * 10_000)).doc
    assert len(doc) == LONGEST_DOC
    assert doc.endswith("…")


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ("add", "'add' has no name"),
        ({"name": ""}, "has no name"),
        ({"name": "t"}, "its inputSchema is not that of an object, but None"),
        ({"name": "t", "inputSchema": {"type": "string"}}, "is not that of an object"),
        ({"name": "t", "inputSchema": {"properties": [1]}}, r"its properties are \[1\], and no object"),
        ({"name": "t", "inputSchema": {"required": "a"}}, "what it requires is 'a'"),
        (entry({"a": {}}, required=["b"]), "it requires 'b', which is none of its properties"),
        (entry({"a": 7}), "the schema of its 'a' is 7, and no object"),
        (entry({"a": {"x-mcp-header": "X Y"}}), "the x-mcp-header of its 'a' is 'X Y'"),
        (
            entry({"a": {"x-mcp-header": "X"}, "b": {"x-mcp-header": "x"}}),
            "it has the x-mcp-header 'x' twice",
        ),
    ],
)
def test_bad_descriptions_say_what_is_wrong(tool: Any, sentence: str):
    with pytest.raises(BadSchema, match=sentence):
        listed_tool(tool)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": [text("a")]}, "a"),
        ({"content": [text("a"), text("b")]}, ["a", "b"]),
        ({"content": []}, None),
        ({}, None),
        ({"content": [text("1")], "structuredContent": {"result": 1}}, 1),
        ({"content": [text("1")], "structuredContent": {"result": 1, "more": 2}}, {"result": 1, "more": 2}),
        ({"structuredContent": [1, 2]}, [1, 2]),
        (
            {"content": [{"type": "image", "mimeType": "image/png", "data": "abcd"}]},
            {"type": "image", "mime_type": "image/png", "base64_chars": 4},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "words"}}]},
            {"type": "resource", "uri": "a:b", "mime_type": None, "text": "words"},
        ),
        (
            {"content": [{"type": "resource_link", "uri": "a:b", "name": "n", "_meta": {}}]},
            {"type": "resource_link", "uri": "a:b", "name": "n"},
        ),
    ],
)
def test_results_are_values(result: Any, value: Any):
    assert result_of(result, "t") == value


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"isError": True, "content": [text("no"), text("way")]}, "no\nway"),
        ({"isError": True}, "t failed and does not say why"),
        ({"resultType": "input_required"}, "t asks for input, and nobody is here to give it"),
    ],
)
def test_failures_are_errors(result: Any, sentence: str):
    with pytest.raises(ToolError) as caught:
        result_of(result, "t")
    assert str(caught.value) == sentence
