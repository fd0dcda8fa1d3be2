"""Host tools as Python functions with a signature, a docstring and help."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List

from .bounded_values import json_within, type_name

_LARGEST, _MANY = 4 << 20, 200_000
"""The most bytes and values in the arguments of one call."""
_EMPTY = inspect.Parameter.empty
Call = Callable[[str, List[Any], Dict[str, Any]], Any]


def function_of(spec: dict[str, Any], call: Call) -> Callable[..., Any]:
    """Create a function that calls the tool; it raises ``TypeError`` for wrong arguments before the host is
    called.
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
        budget = [_LARGEST, _MANY]
        return call(name, [], {key: _argument(name, key, value, budget) for key, value in given.items()})

    return _function(name, signature, spec["doc"], send)


def own_function(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method under the name that programs use."""
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
