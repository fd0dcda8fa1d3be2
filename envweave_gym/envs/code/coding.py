"""Coding: Python in, what it printed and an exit code out, as the coding environments of OpenEnv have it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from gymnasium.spaces import Dict, Discrete

from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.program_env import MOST_ERROR, MOST_OUTPUT, MOST_VALUE, Options, ProgramEnv, named
from envweave_gym.episode.message import message
from envweave_gym.rewards.transforms import CodeQuality, CodeSafety, Composite, RewardFunction
from envweave_gym.sandbox import Execution


class CodingProgramEnv(ProgramEnv):
    """Each action is a program, in a namespace that lasts as long as the episode; only a step limit ends it.

    The value of the last expression is the last line of ``stdout``; an error is in ``stderr``, and its exit
    code is 1. By default a step is worth what :class:`CodeSafety` and :class:`CodeQuality` say together;
    ``allow`` names what is no violation.
    """

    name = "envweave/Coding-v0"
    how_to_act = (
        "Write a Python program, alone or in a ```python block. Later programs see its variables. You are "
        "shown what it prints and the value of its last expression."
    )

    def __init__(
        self,
        transform: RewardFunction | None = None,
        allow: Collection[str] = (),
        step_timeout: float = 10.0,
        checkpoint: bool = False,
        isolation: str = "landlock",
        memory: int | str = "512m",
        python: str | None = None,
        warm: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        with named(self.name):
            options = Options(
                step_timeout=step_timeout,
                checkpoint=checkpoint,
                isolation=isolation,
                memory=memory,
                python=python,
                warm=warm,
            )
            self._safety = CodeSafety(allow if isinstance(allow, str) else tuple(allow))
            judge = Composite(self._safety, CodeQuality()) if transform is None else transform
            super().__init__(options, transform=judge, render_mode=render_mode)
        self.observation_space = Dict(
            {
                "stdout": Unicode(MOST_OUTPUT + MOST_VALUE),
                "stderr": Unicode(MOST_OUTPUT + MOST_ERROR),
                "exit_code": Discrete(2),
            }
        )
        self._last_exit_code = 0

    def _begin(self, options: dict[str, Any]) -> None:
        self._last_exit_code = 0
        self.emit(message("user", self.how_to_act))

    def _observed(self, done: Execution) -> dict[str, Any]:
        self._last_exit_code = int(not done.success)
        return {
            "stdout": _lines(done.stdout, _value(done)),
            "stderr": _lines(done.stderr, done.error),
            "exit_code": self._last_exit_code,
        }

    def _remarks(self, code: str, done: Execution) -> dict[str, Any]:
        """The program itself, and what it reaches for and should not, where it does."""
        violations = self._safety.violations(code)
        return {"last_code": code, **({"safety_violation": ", ".join(violations)} if violations else {})}

    def episode_state(self) -> dict[str, Any]:
        """The exit code of the last step, how well programs are kept in, and the variables there are."""
        return {"last_exit_code": self._last_exit_code, **super().episode_state()}


def _value(done: Execution) -> str:
    """The value of the last expression: as JSON where it has such a form, and a short one, else its repr."""
    if not done.shown or done.value == done.shown:
        return done.shown
    text = json.dumps(done.value)
    return text if len(text) <= MOST_VALUE else done.shown


def _lines(printed: str, last: str) -> str:
    """What was printed, and below it what comes last."""
    if not printed or not last or printed.endswith("\n"):
        return printed + last
    return f"{printed}\n{last}"
