"""Builds the observation of the REPL after each step, and its space."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.sandbox import Execution
from envweave_gym.sandbox.inside.bounded_values import cut
from envweave_gym.tools.json_values import readable

SNAPSHOT = 500
"""Limit of characters of a variable's ``repr``."""
_ERROR, _NAMES, _SHOWN = 21_000, 16_384, 65_536
"""Limits in characters of the error, of all variable names, and of the shown variables together."""


def observation_space(output: int, preview: int) -> Dict:
    """Return the observation space; ``output`` and ``preview`` limit characters of an output and of the context."""
    return Dict(
        {
            "stdout": Unicode(output),
            "stderr": Unicode(output),
            "exception": Unicode(_ERROR),
            "success": Discrete(2),
            "locals_snapshot": Json(_SHOWN),
            "available_variables": Json(_NAMES),
            "context_preview": Unicode(preview),
            "context_length": _numbers(),
            "iteration": _numbers(),
            "max_iterations": _numbers(),
        }
    )


def observation_of(
    space: Dict, done: Execution, context: str, iteration: int, max_iterations: int, names: list[str]
) -> dict[str, Any]:
    """Return the observation after a step; ``names`` are the names of all variables.

    The value of the last expression follows the output, as in Python's own REPL.
    """
    room = {key: inner.max_length for key, inner in space.items() if isinstance(inner, Unicode)}
    printed = f"{_line(done.stdout)}{_line(done.shown)}"
    return {
        "stdout": cut(printed, room["stdout"]),
        "stderr": cut(done.stderr, room["stderr"]),
        "exception": done.error,
        "success": int(done.success),
        "locals_snapshot": _snapshot(done),
        "available_variables": names,
        "context_preview": readable(context[: room["context_preview"]]),
        "context_length": _number(len(context)),
        "iteration": _number(iteration),
        "max_iterations": _number(max_iterations),
    }


def names_that_fit(names: Iterable[str]) -> list[str]:
    """Return the first names, as many as fit into an observation."""
    room, found = _NAMES - 2, list[str]()  # the JSON has two brackets
    for name in names:
        room -= _size(name)
        if room < 0:
            break
        found.append(name)
    return found


def _snapshot(done: Execution) -> dict[str, str]:
    """Return the ``repr`` of each new or changed variable, as many as fit into an observation."""
    room, found = _SHOWN - 2, dict[str, str]()
    for name, one in done.variables.items():
        if one.shown:
            room -= _size(name) + _size(one.shown)
            if room < 0:
                break
            found[name] = one.shown
    return found


def _size(text: str) -> int:
    """Return the number of characters of a text as JSON, with a separator after it."""
    return len(json.dumps(text, ensure_ascii=False)) + 1


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _numbers() -> Box:
    return Box(0, np.inf, (1,), np.int64)


def _number(value: int) -> NDArray[np.int64]:
    return np.array([value], np.int64)
