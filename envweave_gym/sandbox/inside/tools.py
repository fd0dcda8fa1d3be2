"""The tools of the host as Python functions: with a signature, a docstring, and help."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List

from .values import json_within, type_name

_LARGEST, _MANY = 4 << 20, 200_000
"""So many bytes, and values, the arguments of a call may have."""
_EMPTY = inspect.Parameter.empty
Call = Callable[[str, List[Any], Dict[str, Any]], Any]


def function_of(spec: dict[str, Any], call: Call) -> Callable[..., Any]:
    """A function that calls the tool; wrong arguments are a ``TypeError`` before the host hears of them."""
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
        budget = [_LARGEST, _MANY]
        return call(name, [], {key: _argument(name, key, value, budget) for key, value in given.items()})

    return _function(name, signature, spec["doc"], send)


def own_function(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what a method does, and is called what programs know it by."""
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
