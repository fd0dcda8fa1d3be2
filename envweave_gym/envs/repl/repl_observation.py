"""What is seen of a REPL after each step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from envweave_gym.core.spaces import Json, Unicode
from envweave_gym.envs.repl.repl_task import Task
from envweave_gym.sandbox import Execution
from envweave_gym.sandbox.inside.bounded_values import cut
from envweave_gym.tools.json_values import readable

SNAPSHOT = 500
"""So many characters of a new variable are shown."""
_ERROR, _NAMES, _SHOWN = 21_000, 16_384, 65_536


def observation_space(output: int, preview: int) -> Dict:
    """The space of observations, for so many characters of output and of the context."""
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
    space: Dict, done: Execution, task: Task, text: str, iteration: int, names: list[str]
) -> dict[str, Any]:
    """The observation after a step; ``text`` is the context, and ``names`` are the variables that there are.

    The value of the last expression stands behind what was printed, as in any REPL.
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
        "context_preview": readable(text[: room["context_preview"]]),
        "context_length": _number(len(text)),
        "iteration": _number(iteration),
        "max_iterations": _number(task.max_iterations),
    }


def names_shown(names: Iterable[str]) -> list[str]:
    """The names of variables, as far as there is room for them."""
    room, found = _NAMES - 2, list[str]()
    for name in names:
        room -= _size(name)
        if room < 0:
            break
        found.append(name)
    return found


def _snapshot(done: Execution) -> dict[str, str]:
    """The variables that are new or have changed, as far as there is room for them."""
    room, found = _SHOWN - 2, dict[str, str]()
    for name, one in done.variables.items():
        if one.shown:
            room -= _size(name) + _size(one.shown)
            if room < 0:
                break
            found[name] = one.shown
    return found


def _size(text: str) -> int:
    """The characters that a text takes as JSON, with what separates it from the next."""
    return len(json.dumps(text, ensure_ascii=False)) + 1


def _line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _numbers() -> Box:
    return Box(0, np.inf, (1,), np.int64)


def _number(value: int) -> NDArray[np.int64]:
    return np.array([value], np.int64)
