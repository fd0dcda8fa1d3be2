"""What an MCP server says of its tools and results, as Python has it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.tools.json_values import is_json, readable
from envweave_gym.tools.names import identifier
from envweave_gym.tools.tool import Parameter

LONGEST_DOC = 2000
_DEEPEST = 8
_MOST_CHOICES = 50
_MOST_LOOKED_AT = 1000
"""Limit of schemas examined for one annotation, as a schema may contain itself."""
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict",
    "array": "list",
}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadSchema(Exception):
    """A server describes a tool in a way that nobody can call it by; the text says what is wrong."""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as a server lists it, read and checked."""

    name: str
    """What the server calls it."""
    doc: str
    parameters: tuple[Parameter, ...]
    originals: dict[str, str]
    """What the server calls each parameter."""
    returns: str
    mirrored: dict[str, tuple[str, ...]]
    """The arguments that are sent as headers too, where they are: paths by the name of the header."""
    repeatable: bool
    """Whether a call may be made twice, by what the server says."""


def listed_tool(entry: Any) -> ListedTool:
    """Read one entry of a list of tools."""
    name = entry.get("name") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or not name:
        raise BadSchema(f"{shown(entry)} has no name")
    schema = entry.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise BadSchema(f"its inputSchema is not that of an object, but {shown(schema)}")
    parameters, originals = _parameters(schema)
    output = _unwrapped(entry.get("outputSchema"))
    returns = annotation(output, output)
    hints = entry.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    return ListedTool(
        name,
        _doc(entry.get("description"), parameters, _shape(output, output) or returns),
        parameters,
        originals,
        returns,
        _mirrored(schema),
        repeatable=hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True,
    )


def _parameters(schema: Mapping[str, Any]) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """The parameters, those that are required first, and what the server calls them."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping):
        raise BadSchema(f"its properties are {shown(properties)}, and no object")
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise BadSchema(f"what it requires is {shown(required)}, and no list of names")
    if unknown := [each for each in required if each not in properties]:
        raise BadSchema(f"it requires {shown(unknown[0])}, which is none of its properties")
    parameters: list[Parameter] = []
    originals: dict[str, str] = {}
    for original, value in properties.items():
        if not isinstance(value, Mapping | bool):
            raise BadSchema(f"the schema of its {shown(original)} is {shown(value)}, and no object")
        inner = _followed(value, schema) if isinstance(value, Mapping) else {}
        name = identifier(original, taken=originals)
        originals[name] = original
        doc = value.get("description", inner.get("description")) if isinstance(value, Mapping) else None
        default = value.get("default") if isinstance(value, Mapping) else None
        parameters.append(
            Parameter(
                name,
                annotation(value, schema),
                original in required,
                default if is_json(default) else None,
                _description_line(doc, _shape(value, schema)),
            )
        )
    return tuple(sorted(parameters, key=lambda each: not each.required)), originals


# Types


def annotation(schema: Any, root: Mapping[str, Any]) -> str:
    """The Python type of what a JSON schema allows, as text; ``Any`` for what Python cannot say."""
    return _annotation(schema, root, 0, itertools.count())


def _annotation(schema: Any, root: Mapping[str, Any], depth: int, looked_at: Iterator[int]) -> str:
    if not isinstance(schema, Mapping) or depth > _DEEPEST or next(looked_at) >= _MOST_LOOKED_AT:
        return "Any"
    schema = _followed(schema, root)
    inner = partial(_annotation, root=root, depth=depth + 1, looked_at=looked_at)
    if "const" in schema:
        return _choices([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _choices(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(several := schema.get(key), list) and several:
            return _union([inner(each) for each in several], every=key == "allOf")
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([inner({**schema, "type": each}) for each in kind])
    if kind == "array" or (kind is None and "items" in schema):
        return _of("list", inner(schema.get("items")))
    if kind == "object" or (kind is None and "properties" in schema):
        more = None if schema.get("properties") else schema.get("additionalProperties")
        return _of("dict", inner(more), key="str, ")
    return _TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"


def _of(container: str, item: str, key: str = "") -> str:
    return container if item == "Any" else f"{container}[{key}{item}]"


def _union(types: list[str], *, every: bool = False) -> str:
    different = list(dict.fromkeys(types))
    if every:
        known = [each for each in different if each != "Any"]
        return known[0] if len(known) == 1 else "Any"
    return "Any" if not different or "Any" in different else " | ".join(different)


def _choices(values: list[Any]) -> str:
    if not values or len(values) > _MOST_CHOICES or not all(_is_literal(each) for each in values):
        return "Any"
    return f"Literal[{', '.join(repr(each) for each in values)}]"


def _is_literal(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int)


def _followed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a local ``$ref`` leads to; nothing is known of one that leads nowhere or round."""
    for _ in range(_DEEPEST):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root
        for step in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ("?",):
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        schema = found if isinstance(found, Mapping) else {}
    return {}


def _unwrapped(output: Any) -> Mapping[str, Any]:
    """The schema of a result, out of the object that it is wrapped in."""
    schema: Mapping[str, Any] = output if isinstance(output, Mapping) else {}
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and list(properties) == ["result"]:
        inner = properties["result"]
        return {"$defs": schema.get("$defs", {}), **(inner if isinstance(inner, Mapping) else {})}
    return schema


def _shape(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """The keys of an object, or of those in a list, with their types; empty for everything else."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return ""
    schema = _followed(schema, root)
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        keys = (f"{key!r}: {annotation(value, root)}" for key, value in properties.items())
        return f"{{{', '.join(keys)}}}"
    item = _shape(schema["items"], root, depth + 1) if "items" in schema else ""
    return f"[{item}]" if item else ""


def _description_line(description: Any, shape: str) -> str:
    """The description of a parameter in one line."""
    words = " ".join(description.split()) if isinstance(description, str) else ""
    return f"{words} ({shape})" if words and shape else words or shape


def _doc(description: Any, parameters: tuple[Parameter, ...], returns: str) -> str:
    """The docstring of a tool: third-party text, for the model."""
    parts = [description.strip()] if isinstance(description, str) and description.strip() else []
    if parameters:
        lines = (f"    {each.name} ({each.type}): {each.doc}".rstrip(": ") for each in parameters)
        parts.append("\n".join(["Args:", *lines]))
    if returns != "Any":
        parts.append(f"Returns:\n    {returns}")
    doc = readable("\n\n".join(parts))
    return doc if len(doc) <= LONGEST_DOC else doc[: LONGEST_DOC - 1] + "…"


def _mirrored(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Where the arguments are that ``x-mcp-header`` wants in headers as well."""
    found: dict[str, tuple[str, ...]] = {}
    properties = schema.get("properties")
    for name, value in (properties if isinstance(properties, Mapping) else {}).items():
        if not isinstance(value, Mapping):
            continue
        inner = _mirrored(value, (*path, name))
        if "x-mcp-header" in value:
            header = value["x-mcp-header"]
            if not (isinstance(header, str) and _TOKEN.fullmatch(header)):
                raise BadSchema(
                    f"the x-mcp-header of its {shown(name)} is {shown(header)}, and no name of one"
                )
            inner[header] = (*path, name)
        if again := {each.lower() for each in inner} & {each.lower() for each in found}:
            raise BadSchema(f"it has the x-mcp-header {shown(min(again))} twice")
        found |= inner
    return found


# Results


def result_of(result: Mapping[str, Any], what: str) -> Any:
    """What a call returns: its structured content, or else its texts and the like; ``what`` was called."""
    content = result.get("content")
    items = [_item(each) for each in content] if isinstance(content, list) else []
    if result.get("isError"):
        said = "\n".join(item for item in items if isinstance(item, str))
        raise ToolError(said or f"{what} failed and does not say why")
    if result.get("resultType", "complete") != "complete":
        raise ToolError(f"{what} asks for input, and nobody is here to give it")
    structured = result.get("structuredContent")
    if structured is not None:
        alone = isinstance(structured, dict) and list(structured) == ["result"]
        return structured["result"] if alone else structured
    return items[0] if len(items) == 1 else items or None


def _item(item: Any) -> Any:
    """One part of a result; of images and sounds only what there is, as no program here looks at them."""
    if not isinstance(item, Mapping):
        return item
    if item.get("type") == "text":
        return readable(str(item.get("text", "")))
    if item.get("type") in ("image", "audio"):
        data = item.get("data")
        chars = len(data) if isinstance(data, str) else 0
        return {"type": item["type"], "mime_type": item.get("mimeType"), "base64_chars": chars}
    if item.get("type") == "resource" and isinstance(inner := item.get("resource"), Mapping):
        blob = inner.get("blob")
        size = {"base64_chars": len(blob)} if isinstance(blob, str) else {"text": inner.get("text")}
        return {"type": "resource", "uri": inner.get("uri"), "mime_type": inner.get("mimeType"), **size}
    return {key: value for key, value in item.items() if key not in ("annotations", "_meta", "icons")}
