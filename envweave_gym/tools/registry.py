"""A registry of tools by name, which checks arguments and converts results and errors."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from envweave_gym.core.faults import MAX_MESSAGE_LENGTH, InvalidArgument, ToolError, nearest, shown
from envweave_gym.tools.json_values import json_value, readable
from envweave_gym.tools.tool import Tool, function_name

_FOLDERS = re.compile(r"(?<![\w:/.])/(?:[^\s/'\":]+/)+")
"""The folders of an absolute path."""


@runtime_checkable
class Toolset(Protocol):
    """An object that offers several tools, such as an MCP server."""

    def tools(self) -> list[Tool]:
        """Return the tools that this object offers now."""
        ...


Offered = Callable[..., Any] | Tool | Toolset | Mapping[str, Callable[..., Any]]
"""Type of all objects that :meth:`ToolRegistry.add` accepts as one tool or several."""


class ToolRegistry:
    """Tools by name, which take JSON arguments and return JSON.

    A registry takes functions, :class:`Tool`, mappings from names to functions, MCP servers, and other registries.
    """

    def __init__(self, tools: Offered | Iterable[Offered] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        several = isinstance(tools, Iterable) and not isinstance(tools, Mapping)
        given: Any = tools if several else [tools]
        for tool in given:
            self.add(tool)

    def add(self, tool: Offered | ToolRegistry, *, name: str | None = None) -> None:
        """Add one tool, or all tools of a mapping, a registry or a server.

        Raise ``InvalidArgument`` if a name is taken; a server's tool is called ``<server>_<tool>`` instead.
        """
        if isinstance(tool, Mapping):
            found = [Tool.of(function, name=key) for key, function in tool.items()]
        elif isinstance(tool, ToolRegistry):
            found = list(tool)
        elif isinstance(tool, Tool):
            found = [tool if name is None else dataclasses.replace(tool, name=function_name(name))]
        elif isinstance(tool, Toolset):
            found = tool.tools()
        else:
            found = [Tool.of(tool, name=name)]
        if name is not None and (isinstance(tool, Mapping | ToolRegistry | Toolset)):
            raise InvalidArgument(f"name={shown(name)} is for one tool; {shown(tool)} has names of its own")
        for each in found:
            self._add(each)

    def _add(self, tool: Tool) -> None:
        if tool.name in self._tools and tool.origin:
            tool = dataclasses.replace(tool, name=function_name(f"{tool.origin}_{tool.name}"))
        if tool.name in self._tools:
            raise InvalidArgument(f"there is a tool {tool.name!r} already; remove it, or give name=")
        self._tools[tool.name] = tool

    def remove(self, name: str) -> None:
        """Remove the tool with this name; raise ``InvalidArgument`` if there is none."""
        del self._tools[self[name].name]

    def __iter__(self) -> Iterator[Tool]:
        return iter(list(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise InvalidArgument(self._unknown(name))
        return self._tools[name]

    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(self._tools) or 'empty'})"

    def _unknown(self, name: Any) -> str:
        hint = nearest(name, self._tools) if isinstance(name, str) else ""
        return f"there is no tool {shown(name)}{hint}; there are {', '.join(self._tools) or 'none'}"

    def specs(self) -> list[dict[str, Any]]:
        """Return the name, parameters and docstring of each tool as JSON, so that programs can build functions."""
        return [
            {
                "name": tool.name,
                "doc": readable(tool.doc),
                "parameters": [
                    {
                        "name": parameter.name,
                        "type": parameter.type,
                        "required": parameter.required,
                        "default": parameter.default,
                    }
                    for parameter in tool.parameters
                ],
                "returns": tool.returns,
            }
            for tool in self
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool with arguments by name, and return its result as JSON.

        Raise :class:`ToolError` with one line of text for every failure. The caller is an untrusted program, so the
        text has no traceback and no paths of this machine.
        """
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise ToolError(self._unknown(name))
        _check_arguments(tool, arguments)
        try:
            return json_value(tool.call(arguments))
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            raise ToolError(_error_text(error, arguments)) from error


def _check_arguments(tool: Tool, arguments: Any) -> None:
    """Raise ``ToolError`` for missing and unknown arguments."""
    if not isinstance(arguments, dict):
        raise ToolError(f"{tool.name}() takes arguments by name, not {shown(arguments)}")
    known = [parameter.name for parameter in tool.parameters]
    for given in arguments:
        if given not in known:
            hint = nearest(given, known) if isinstance(given, str) else ""
            takes = ", ".join(known) or "none"
            raise ToolError(f"{tool.name}() takes no argument {shown(given)}{hint}; it takes {takes}")
    needed = [each.name for each in tool.parameters if each.required and each.name not in arguments]
    if needed:
        raise ToolError(f"{tool.name}() needs {', '.join(map(repr, needed))}")


def _error_text(error: BaseException, arguments: dict[str, Any]) -> str:
    """Return the type and text of an exception in one line, with absolute paths cut to their file names."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything, and the error is shown all the same
        text = ""
    known = "\n".join(value for value in arguments.values() if isinstance(value, str))
    text = _FOLDERS.sub(lambda match: match[0] if match[0] in known else "", text)
    return readable(f"{type(error).__name__}: {text}" if text else type(error).__name__)[:MAX_MESSAGE_LENGTH]
