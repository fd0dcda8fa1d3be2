"""Creates the functions by which programs call the host process's tools, with signature and docstring for ``help``."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List

from .bounded_values import json_within, type_name

_MAX_BYTES, _MAX_VALUES = 4 << 20, 200_000
"""Limits of the arguments of one call: bytes, and JSON values."""
_EMPTY = inspect.Parameter.empty
Call = Callable[[str, List[Any], Dict[str, Any]], Any]
"""Function that calls a tool of the host with its name, positional and named arguments."""


def function_of(spec: dict[str, Any], call: Call) -> Callable[..., Any]:
    """Return a function that calls the tool that ``spec`` describes.

    It raises ``TypeError`` for arguments that do not fit the signature or cannot be sent, without calling the host
    process.
    """
    name = spec["name"]
    parameters = [
        inspect.Parameter(
            one["name"],
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=_EMPTY if one["required"] else one.get("default"),
            annotation=one["type"],
        )
        for one in spec["parameters"]
    ]
    signature = inspect.Signature(parameters, return_annotation=spec["returns"])

    def send(given: dict[str, Any]) -> Any:
        budget = [_MAX_BYTES, _MAX_VALUES]
        return call(name, [], {key: _argument(name, key, value, budget) for key, value in given.items()})

    return _function(name, signature, spec["doc"], send)


def own_function(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method of the worker, under the name that programs use."""
    bare = [one.replace(annotation=_EMPTY) for one in inspect.signature(method).parameters.values()]
    return _function(name, inspect.Signature(bare), method.__doc__, lambda given: method(**given))


def _function(
    name: str, signature: inspect.Signature, doc: str | None, do: Callable[[dict[str, Any]], Any]
) -> Callable[..., Any]:
    def tool(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{name}{signature}: {error}") from None
        return do(given)

    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = doc
    tool.__module__ = "tools"
    tool.__signature__ = signature
    return tool


def _argument(name: str, key: str, value: Any, budget: list[int]) -> Any:
    try:
        return json_within(value, budget)
    except ValueError as error:
        raise TypeError(f"{name}: {key}={type_name(value)} cannot be sent to a tool: {error}") from None
