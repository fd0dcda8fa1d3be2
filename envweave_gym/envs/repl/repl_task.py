"""What an episode of a REPL is about, and what its steps are worth."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.envs.repl.printed_answers import MATCHES, score_of

MOST_ITERATIONS = 100_000
RESET_OPTIONS = ("context", "task_prompt", "max_iterations", "expected_answer", "llm_model")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What an episode is about."""

    context: Any = ""
    """What programs find as ``context``: text, or other JSON."""
    task_prompt: str = ""
    max_iterations: int = 30
    """After so many steps without an answer the episode ends as a failure."""
    expected_answer: str | None = None
    """What the answer is compared with; without it any answer is a success."""
    llm_model: str | None = None
    """The model that sub-calls ask, where they name none."""

    def __post_init__(self) -> None:
        most = self.max_iterations
        if type(most) is not int or not 1 <= most <= MOST_ITERATIONS:
            raise InvalidArgument(
                f"max_iterations={shown(most)} is no number of steps from 1 to {MOST_ITERATIONS}"
            )
        for name in ("task_prompt", "llm_model"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "llm_model" and value is None):
                raise InvalidArgument(f"{name}={shown(value)} is not a text")
        try:
            json.dumps(self.context, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise InvalidArgument(f"context={shown(self.context)} is neither a text nor other JSON") from None

    def changed(self, options: dict[str, Any]) -> Task:
        """The task with what a reset says otherwise; an answer that is no text is compared as one."""
        given = {name: value for name, value in options.items() if name in RESET_OPTIONS}
        if given.get("expected_answer") is not None:
            given["expected_answer"] = str(given["expected_answer"])
        return msgspec.structs.replace(self, **given)

    def text(self) -> str:
        """The context as text."""
        return self.context if isinstance(self.context, str) else json.dumps(self.context, ensure_ascii=False)


class Rewards(msgspec.Struct, frozen=True, kw_only=True):
    """What a step is worth: of success, failure and iteration one, and the error beside it."""

    success: float = 1.0
    """For the answer: the expected one, or any where none is expected."""
    iteration: float = 0.0
    """For a step after which the episode goes on."""
    failure: float = -0.1
    """For the last step that there is, if it has no answer."""
    error: float = -0.05
    """For a program that raises."""
    wrong: float = 0.0
    """For another answer than the expected one."""
    match: str = "exact"

    def __post_init__(self) -> None:
        for name in ("success", "iteration", "failure", "error", "wrong"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgument(f"reward_on_{name}={shown(value)} is no finite number")
        if self.match not in MATCHES:
            known = " and ".join(map(repr, MATCHES))
            raise InvalidArgument(f"match={shown(self.match)} is unknown; there are {known}")

    def of(self, task: Task, answer: str | None, *, ended: bool, success: bool) -> dict[str, float]:
        """The parts of what a step is worth, by name."""
        parts: dict[str, float] = {}
        if answer is not None:
            expected = task.expected_answer
            score = 1.0 if expected is None else score_of(answer, expected, self.match)
            parts |= {"success": self.success * score} if score else {"wrong": self.wrong}
        elif ended:
            parts["failure"] = self.failure
        else:
            parts["iteration"] = self.iteration
        return {**parts, **({} if success else {"error": self.error})}
