"""A tool: a function that is called by name with JSON arguments, with its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.tools.json_values import is_json, json_value
from envweave_gym.tools.names import function_name


class Parameter(msgspec.Struct, frozen=True):
    """An argument that a tool takes."""

    name: str
    """A Python identifier."""
    type: str = "Any"
    """Its annotation as text, like ``list[dict]`` or ``Literal['a', 'b']``."""
    required: bool = True
    default: Any = None
    """The default value, as JSON."""
    doc: str = ""


@dataclass(frozen=True)
class Tool:
    """A function with a name, a signature and a docstring, wherever it runs."""

    name: str
    """A Python identifier."""
    doc: str
    parameters: tuple[Parameter, ...]
    """Those that are required come first."""
    returns: str = "Any"
    """The annotation of what it returns, as text."""
    call: Callable[[dict[str, Any]], Any] = field(kw_only=True)
    """Takes the arguments by the names of the parameters; those that are not required may be missing."""
    origin: str = ""
    """The server it comes from, which tells it from others of its name."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and function_name(self.name) == self.name):
            raise InvalidArgument(
                f"a tool cannot be called {shown(self.name)}; give an identifier that is no word of Python"
            )

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None) -> Tool:
        """The tool that a Python callable is, by its signature, annotations and docstring.

        A default that is no JSON is shown as its ``repr``; who sends that back gets the default itself.
        """
        called = function_name(_name_of(function) if name is None else name)
        signature = _signature(called, function)
        parameters = [_parameter(called, each) for each in signature.parameters.values()]
        standins = {
            each.name: json_value(each.default)
            for each in signature.parameters.values()
            if each.default is not each.empty and not is_json(each.default)
        }
        return cls(
            name=called,
            doc=inspect.getdoc(function) or "",
            parameters=tuple(sorted(parameters, key=lambda parameter: not parameter.required)),
            returns=_annotation(signature.return_annotation),
            call=partial(_call, function, standins),
        )


def _call(function: Callable[..., Any], standins: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Call a function, without the arguments that only stand for its own defaults."""
    return function(
        **{
            name: value
            for name, value in arguments.items()
            if not (name in standins and standins[name] == value)
        }
    )


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str) or name == "<lambda>":
        raise InvalidArgument(
            f"{shown(function)} is no function with a name; give a def, or a mapping from names to callables"
        )
    return name


def _signature(name: str, function: Any) -> inspect.Signature:
    if not callable(function):
        raise InvalidArgument(f"the tool {name} is {shown(function)}, which cannot be called")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        raise InvalidArgument(f"the tool {name} is async; give a plain function that returns its result")
    try:
        return inspect.signature(function)
    except ValueError:  # what is written in C may not tell
        raise InvalidArgument(
            f"the tool {name} does not tell its signature; wrap it in a def with named parameters"
        ) from None


def _parameter(tool: str, parameter: inspect.Parameter) -> Parameter:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise InvalidArgument(
            f"the tool {tool} has the parameter {str(parameter).partition(':')[0]}, which is "
            f"{parameter.kind.description}; a tool takes arguments by name"
        )
    required = parameter.default is parameter.empty
    default = None if required else json_value(parameter.default)
    return Parameter(parameter.name, _annotation(parameter.annotation), required, default)


def _annotation(annotation: Any) -> str:
    """An annotation as text."""
    if annotation is inspect.Signature.empty:
        return "Any"
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation).replace("typing.", "")
