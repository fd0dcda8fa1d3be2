"""The class ``Tool``: a function with JSON arguments, its signature and docstring, and a safe name."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.tools.json_values import is_json, json_value

_PREDEFINED = frozenset({*vars(builtins), "ToolError", "math"})
"""Names that programs have without tools, and that no tool may replace."""


def identifier(name: str, *, taken: Container[str] = ()) -> str:
    """Convert a name to a Python identifier that is not in ``taken``.

    Other characters become ``_``, and ``_`` is appended until the identifier is new.
    """
    plain = re.sub(r"\W", "_", name) or "_"
    if not plain.isidentifier():
        plain = f"_{plain}"
    while keyword.iskeyword(plain) or plain in taken:
        plain += "_"
    return plain


def function_name(name: str) -> str:
    """Convert a name to an identifier that replaces no builtin: ``get-sum`` to ``get_sum``, ``open`` to ``open_``."""
    return identifier(name, taken=_PREDEFINED)


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a tool: its Python name, type, default and description."""

    name: str
    """A Python identifier."""
    type: str = "Any"
    """The annotation as text, such as ``list[dict]`` or ``Literal['a', 'b']``."""
    required: bool = True
    default: Any = None
    """The default value, as JSON."""
    doc: str = ""


@dataclass(frozen=True)
class Tool:
    """A function that programs and models may call, here or on a server, with its signature and docstring."""

    name: str
    """A Python identifier."""
    doc: str
    parameters: tuple[Parameter, ...]
    """Required parameters come first."""
    returns: str = "Any"
    """The annotation of the result, as text."""
    call: Callable[[dict[str, Any]], Any] = field(kw_only=True)
    """Function of a dict of arguments by parameter name, in which optional ones may be missing."""
    origin: str = ""
    """The name of the tool's server, which distinguishes it from tools of the same name; empty without a server."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and function_name(self.name) == self.name):
            raise InvalidArgument(
                f"a tool cannot be called {shown(self.name)}; give an identifier that is no word of Python"
            )

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None) -> Tool:
        """Make a tool of a Python callable, with its signature, annotations and docstring.

        A default that is no JSON is described by its ``repr``; if a caller sends this text, the default is used.
        """
        called = function_name(_name_of(function) if name is None else name)
        signature = _signature(called, function)
        parameters = [_parameter(called, each) for each in signature.parameters.values()]
        stand_ins = {
            each.name: json_value(each.default)
            for each in signature.parameters.values()
            if each.default is not each.empty and not is_json(each.default)
        }
        return cls(
            name=called,
            doc=inspect.getdoc(function) or "",
            parameters=tuple(sorted(parameters, key=lambda parameter: not parameter.required)),
            returns=_annotation(signature.return_annotation),
            call=partial(_call, function, stand_ins),
        )


def _call(function: Callable[..., Any], stand_ins: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Call a function, leaving out arguments that equal the text in ``stand_ins``, so that its defaults apply."""
    return function(
        **{
            name: value
            for name, value in arguments.items()
            if not (name in stand_ins and stand_ins[name] == value)
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
    except ValueError:  # functions in C may have none
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
    if annotation is inspect.Signature.empty:
        return "Any"
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation).replace("typing.", "")
