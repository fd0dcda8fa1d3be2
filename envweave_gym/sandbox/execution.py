"""The outcome of a step, and its construction from a worker's report, which a program may have forged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from envweave_gym.core.program_result import Result
from envweave_gym.sandbox.inside.channel import Message

_MAX_VARIABLES = 300
_LONGEST_NAME, _LONGEST_TRACE = 200, 20_000
_DEEPEST_JSON = 100
"""Limits of a report, which honest workers stay below: variables, characters, nested lists and objects."""


class Final(msgspec.Struct, frozen=True):
    """The final answer of a program."""

    text: str
    """Its ``str``."""
    value: Any = None
    """Its JSON, if it has any."""


class Variable(msgspec.Struct, frozen=True):
    """A variable of a program."""

    kind: str
    """The name of its class."""
    shown: str = ""
    """Its ``repr``, if ``snapshot`` requested it."""


class Execution(Result, frozen=True, kw_only=True):
    """The outcome of a step: all of it that is the same whenever the same program runs.

    ``value`` is that of the last expression: its JSON, or the text of its ``repr``.
    """

    shown: str = ""
    """The ``repr`` of the value; empty if there is none."""
    stderr: str = ""
    error: str = ""
    """The traceback."""
    error_type: str = ""
    """The class of the exception; or what ended the step from outside: ``StepTimeout``, ``OutputLimit`` or
    ``WorkerDied``."""
    timed_out: bool = False
    state_lost: bool = False
    """Whether all variables are lost: the process was killed, or died."""
    restored: bool = False
    """Whether a copy from before the step has replaced the process, which was lost."""
    variables: dict[str, Variable] = {}
    """The variables that the program has defined so far."""
    watched: dict[str, Any] = {}
    """The JSON of the variables named by ``watch``."""
    final: Final | None = None

    def answers(self) -> Iterator[Any]:
        """Yield the final answer, if there is one; else the value, or the last line printed."""
        if self.final is None:
            yield from super().answers()
        else:
            yield self.final.text if self.final.value is None else self.final.value


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a step, which differs every time."""

    seconds: float = 0.0
    """Time of the program, without its waits for the host."""
    wall: float = 0.0
    """Total time."""
    cpu: float = 0.0
    """Processor time, as the worker reports it."""
    calls: int = 0
    """Tool calls."""
    written: int = 0
    """Bytes of output and errors."""
    threads: int = 0
    """Threads that are still running, as the worker reports it."""


def execution_from(report: Message, stdout: str, stderr: str, longest: int, snapshot: int) -> Execution:
    """Build the outcome from a report, field by field.

    ``longest`` limits the characters of the value, ``snapshot`` those of each variable.
    """
    shown = text_of(report.get("shown"), longest)
    value, watched = report.get("json"), json_of(report.get("watched"))
    final = report.get("final")
    return Execution(
        success=report.get("success") is True,
        value=json_of(value[0]) if isinstance(value, list) and value else shown or None,
        stdout=stdout,
        stderr=stderr,
        shown=shown,
        error=text_of(report.get("error"), _LONGEST_TRACE),
        error_type=text_of(report.get("error_type"), _LONGEST_NAME),
        variables=_variables_from(report.get("variables"), snapshot),
        watched=watched if isinstance(watched, dict) else {},
        final=_final_from(final) if isinstance(final, dict) else None,
    )


def text_of(value: Any, longest: int | None = None) -> str:
    """Return a text, cut to a length and valid in UTF-8; anything else gives an empty one."""
    return value[:longest].encode(errors="replace").decode() if isinstance(value, str) else ""


def number_of(value: Any) -> float:
    """Return a finite number from 0 on; anything else gives 0."""
    return value if isinstance(value, int | float) and 0 <= value < 1e18 else 0


def json_of(value: Any, deepest: int = _DEEPEST_JSON) -> Any:
    """Return JSON of limited depth, with finite numbers and valid texts; the rest becomes ``None``."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [json_of(item, deepest - 1) for item in value] if deepest else None
    if isinstance(value, dict):
        return {text_of(key): json_of(item, deepest - 1) for key, item in value.items()} if deepest else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _final_from(given: dict[str, Any]) -> Final:
    value = given.get("json")
    return Final(text_of(given.get("text")), json_of(value[0]) if isinstance(value, list) and value else None)


def _variables_from(given: Any, snapshot: int) -> dict[str, Variable]:
    if not isinstance(given, dict):
        return {}
    return {
        text_of(name, _LONGEST_NAME): Variable(text_of(one[0], _LONGEST_NAME), text_of(one[1], snapshot))
        for name, one in list(given.items())[:_MAX_VARIABLES]
        if isinstance(one, list) and len(one) == 2
    }
