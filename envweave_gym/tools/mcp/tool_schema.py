"""Converts tools and results of MCP servers: JSON schemas become Python signatures and docstrings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.faults import ToolError, shown
from envweave_gym.tools.json_values import is_json, readable
from envweave_gym.tools.tool import Parameter, identifier

LONGEST_DOC = 2000
"""Limit of a docstring in characters."""
_MAX_DEPTH = 8  # of nested schemas; deeper ones become Any
_MAX_CHOICES = 50  # of an enum; one with more becomes Any
_MAX_SCHEMAS = 1000
"""Limit of schemas that are read for one annotation, as a schema may contain itself."""
_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict",
    "array": "list",
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadSchema(Exception):
    """Raised if the description of a tool cannot become a function; the text says why."""


class ListedTool(msgspec.Struct, frozen=True):
    """The checked description of a tool, with Python names and the server's names."""

    name: str
    """The server's name for the tool."""
    doc: str
    parameters: tuple[Parameter, ...]
    originals: dict[str, str]
    """The server's name for each parameter, by Python name."""
    returns: str
    mirrored: dict[str, tuple[str, ...]]
    """HTTP headers that must repeat an argument, with the path of the argument as keys of nested objects."""
    repeatable: bool
    """Whether the server declares the tool read-only or idempotent."""

    def original_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Rename arguments from Python names to the server's, and leave out optional ones that are None."""
        optional = {one.name for one in self.parameters if not one.required}
        return {
            self.originals[name]: value
            for name, value in arguments.items()
            if value is not None or name not in optional
        }

    def headers_for(self, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the HTTP headers that repeat some of these arguments, as the tool's schema demands."""
        headers: dict[str, str] = {}
        for header, path in self.mirrored.items():
            value: Any = arguments
            for key in path:
                value = _mapping(value).get(key)
            if isinstance(value, str | int):
                headers[f"Mcp-Param-{header}"] = str(value).lower() if isinstance(value, bool) else str(value)
        return headers


def listed_tool(entry: Any) -> ListedTool:
    """Check and convert one entry of a server's list of tools; raise :class:`BadSchema` if that is impossible."""
    name = _mapping(entry).get("name")
    if not isinstance(name, str) or not name:
        raise BadSchema(f"{shown(entry)} has no name")
    schema = entry.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise BadSchema(f"its inputSchema is not that of an object, but {shown(schema)}")
    parameters, originals = _parameters(schema)
    output = _without_wrapper(_mapping(entry.get("outputSchema")))
    returns = annotation(output, output)
    hints = _mapping(entry.get("annotations"))
    return ListedTool(
        name,
        _docstring(entry.get("description"), parameters, _keys(output, output) or returns),
        parameters,
        originals,
        returns,
        _mirrored(schema),
        repeatable=hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True,
    )


def _parameters(schema: Mapping[str, Any]) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """Return the parameters, required ones first, and the server's name for each."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, Mapping):
        raise BadSchema(f"its properties are {shown(properties)}, and no object")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise BadSchema(f"what it requires is {shown(required)}, and no list of names")
    if unknown := [name for name in required if name not in properties]:
        raise BadSchema(f"it requires {shown(unknown[0])}, which is none of its properties")
    parameters: list[Parameter] = []
    originals: dict[str, str] = {}
    for original, inner in properties.items():
        if not isinstance(inner, Mapping | bool):
            raise BadSchema(f"the schema of its {shown(original)} is {shown(inner)}, and no object")
        given = _mapping(inner)
        name = identifier(original, taken=originals)
        originals[name] = original
        doc = given.get("description", _resolved(given, schema).get("description"))
        words = " ".join(doc.split()) if isinstance(doc, str) else ""
        keys = _keys(given, schema)
        default = given.get("default")
        parameter = Parameter(
            name,
            annotation(inner, schema),
            original in required,
            default if is_json(default) else None,
            f"{words} ({keys})" if words and keys else words or keys,
        )
        parameters.append(parameter)
    return tuple(sorted(parameters, key=lambda one: not one.required)), originals


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one, as schemas are not trusted."""
    return value if isinstance(value, Mapping) else {}


# Types


def annotation(schema: Any, root: Mapping[str, Any]) -> str:
    """Return the Python type of a JSON schema as text; ``Any`` if Python cannot express it."""
    return _annotation(schema, root, 0, itertools.count())


def _annotation(schema: Any, root: Mapping[str, Any], depth: int, counter: Iterator[int]) -> str:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or next(counter) >= _MAX_SCHEMAS:
        return "Any"
    schema = _resolved(schema, root)
    inner = partial(_annotation, root=root, depth=depth + 1, counter=counter)
    if "const" in schema:
        return _literal([schema["const"]])
    if isinstance(schema.get("enum"), list):
        return _literal(schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(several := schema.get(key), list) and several:
            return _union([inner(one) for one in several], every=key == "allOf")
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([inner({**schema, "type": one}) for one in kind])
    if kind == "array" or (kind is None and "items" in schema):
        item = inner(schema.get("items"))
        return "list" if item == "Any" else f"list[{item}]"
    if kind == "object" or (kind is None and "properties" in schema):
        item = "Any" if schema.get("properties") else inner(schema.get("additionalProperties"))
        return "dict" if item == "Any" else f"dict[str, {item}]"
    return _TYPES.get(kind, "Any") if isinstance(kind, str) else "Any"


def _union(types: list[str], *, every: bool = False) -> str:
    """Join alternatives; ``every`` means that a value has all of the types."""
    different = list(dict.fromkeys(types))
    if every:
        known = [one for one in different if one != "Any"]
        return known[0] if len(known) == 1 else "Any"
    return "Any" if not different or "Any" in different else " | ".join(different)


def _literal(values: list[Any]) -> str:
    known = all(value is None or isinstance(value, str | bool | int) for value in values)
    if not known or not 0 < len(values) <= _MAX_CHOICES:
        return "Any"
    return f"Literal[{', '.join(map(repr, values))}]"


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow local ``$ref``s; return an empty schema if a reference is broken or circular."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root if reference.startswith("#") else {}
        for key in reference.removeprefix("#").split("/")[1:]:
            found = _mapping(found).get(key.replace("~1", "/").replace("~0", "~"))
        schema = _mapping(found)
    return {}


def _without_wrapper(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the property ``result`` if there is no other; SDKs wrap plain values like this."""
    properties = _mapping(schema.get("properties"))
    if list(properties) != ["result"]:
        return schema
    return {"$defs": schema.get("$defs", {}), **_mapping(properties["result"])}


def _keys(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Describe the keys of an object, or of the objects in a list, for a docstring; empty for other types."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ""
    schema = _resolved(schema, root)
    if properties := _mapping(schema.get("properties")):
        keys = (f"{key!r}: {annotation(value, root)}" for key, value in properties.items())
        return f"{{{', '.join(keys)}}}"
    item = _keys(schema.get("items"), root, depth + 1)
    return f"[{item}]" if item else ""


def _docstring(description: Any, parameters: tuple[Parameter, ...], returns: str) -> str:
    parts = [description.strip()] if isinstance(description, str) and description.strip() else []
    if parameters:
        lines = (f"    {one.name} ({one.type}): {one.doc}".rstrip(": ") for one in parameters)
        parts.append("\n".join(["Args:", *lines]))
    if returns != "Any":
        parts.append(f"Returns:\n    {returns}")
    doc = readable("\n\n".join(parts))
    return doc if len(doc) <= LONGEST_DOC else doc[: LONGEST_DOC - 1] + "…"


def _mirrored(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Return the HTTP headers that ``x-mcp-header`` in a schema names, each with the path of its argument."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in _mapping(schema.get("properties")).items():
        inner = _mirrored(_mapping(value), (*path, name))
        if (header := _mapping(value).get("x-mcp-header")) is not None:
            if not (isinstance(header, str) and _HEADER_NAME.fullmatch(header)):
                raise BadSchema(
                    f"the x-mcp-header of its {shown(name)} is {shown(header)}, and no name of one"
                )
            inner[header] = (*path, name)
        if again := {one.lower() for one in inner} & {one.lower() for one in found}:
            raise BadSchema(f"it has the x-mcp-header {shown(min(again))} twice")
        found |= inner
    return found


# Results


def result_of(result: Mapping[str, Any], tool: str) -> Any:
    """Convert the result of a call to a value: its structured content, or else its texts and other parts.

    Raise ``ToolError`` if the result says that the call failed; ``tool`` names the tool in errors.
    """
    content = result.get("content")
    items = [_item(one) for one in content] if isinstance(content, list) else []
    if result.get("isError"):
        text = "\n".join(item for item in items if isinstance(item, str))
        raise ToolError(text or f"{tool} failed and does not say why")
    if result.get("resultType", "complete") != "complete":
        raise ToolError(f"{tool} asks for input, and nobody is here to give it")
    structured = result.get("structuredContent")
    if structured is not None:
        is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
        return structured["result"] if is_wrapped else structured
    return items[0] if len(items) == 1 else items or None


def _item(item: Any) -> Any:
    """Convert one part of a result; images and sounds become their type and size, as programs read text."""
    kind, given = _mapping(item).get("type"), _mapping(item)
    if kind == "text":
        return readable(str(given.get("text", "")))
    if kind in ("image", "audio"):
        return {"type": kind, "mime_type": given.get("mimeType"), **_size(given.get("data"))}
    if kind == "resource" and isinstance(inner := given.get("resource"), Mapping):
        size = _size(inner["blob"]) if "blob" in inner else {"text": inner.get("text")}
        return {"type": kind, "uri": inner.get("uri"), "mime_type": inner.get("mimeType"), **size}
    if not given:
        return item
    return {key: value for key, value in given.items() if key not in ("annotations", "_meta", "icons")}


def _size(data: Any) -> dict[str, int]:
    return {"base64_chars": len(data) if isinstance(data, str) else 0}
