"""What a worker says of a step, read field by field: a program may have forged any of it."""

from __future__ import annotations

import math
from typing import Any

from envweave_gym.sandbox.inside.bounded_values import cut
from envweave_gym.sandbox.inside.channel import Message
from envweave_gym.sandbox.result import Execution, Final, Variable

_VARIABLES = 300
_LONGEST_NAME, _LONGEST_TRACE = 200, 20_000
"""So many variables a worker tells of, and so many characters names of them and of classes, and tracebacks,
have at most."""
_DEEPEST = 100
"""So many lists and objects may lie in each other: a worker sends fewer."""


def execution_of(m: Message, stdout: str, stderr: str, longest: int, snapshot: int) -> Execution:
    """What came of a step, as its worker says.

    ``longest`` is how many characters of its value are shown, and ``snapshot`` how many of each variable.
    """
    shown = cut(text_of(m.get("shown")), longest)
    value = _json_in(m.get("json"))
    watched = json_of(m.get("watched"))
    return Execution(
        success=m.get("success") is True,
        value=value[0] if value else shown or None,
        stdout=stdout,
        stderr=stderr,
        shown=shown,
        error=cut(text_of(m.get("error")), _LONGEST_TRACE),
        error_type=_name(m.get("error_type")),
        variables=_variables(m.get("variables"), snapshot),
        watched=watched if isinstance(watched, dict) else {},
        final=_final(m.get("final")),
    )


def text_of(value: Any) -> str:
    """A text that UTF-8 can hold; what is no text is none."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else ""


def number_of(value: Any) -> float:
    """A number that is finite and not below zero; what is none is 0."""
    return value if isinstance(value, int | float) and 0 <= value < 1e18 else 0


def json_of(value: Any, deepest: int = _DEEPEST) -> Any:
    """JSON with finite numbers, texts that UTF-8 can hold, and an end; ``None`` in place of what is none."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [json_of(item, deepest - 1) for item in value] if deepest else None
    if isinstance(value, dict):
        return {text_of(key): json_of(item, deepest - 1) for key, item in value.items()} if deepest else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_in(value: Any) -> list[Any]:
    return [json_of(value[0])] if isinstance(value, list) and value else []


def _final(value: Any) -> Final | None:
    if not isinstance(value, dict):
        return None
    found = _json_in(value.get("json"))
    return Final(text_of(value.get("text")), found[0] if found else None)


def _name(value: Any) -> str:
    return cut(text_of(value), _LONGEST_NAME)


def _variables(told: Any, snapshot: int) -> dict[str, Variable]:
    if not isinstance(told, dict):
        return {}
    found: dict[str, Variable] = {}
    for name, what in list(told.items())[:_VARIABLES]:
        if isinstance(what, list) and len(what) == 2:
            found[_name(name)] = Variable(_name(what[0]), cut(text_of(what[1]), snapshot))
    return found
