"""The environment Coding, without a task: actions are Python programs; observations are their output and exit code.

The default reward judges safety and quality of the program.
"""

from __future__ import annotations

import json
from typing import Any

from gymnasium.spaces import Dict, Discrete

from envweave_gym.core.config import configured
from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.code.code_config import CodingConfig
from envweave_gym.envs.code.program_env import MAX_ERROR, MAX_OUTPUT, MAX_VALUE, ProgramEnv
from envweave_gym.episode.message import message
from envweave_gym.rewards.transforms import CodeQuality, CodeSafety, Composite
from envweave_gym.sandbox import Execution


class CodingProgramEnv(ProgramEnv):
    """Environment whose actions are Python programs that share one namespace in an episode.

    The value of the last expression is appended to ``stdout``. After an error, ``stderr`` contains the traceback and
    the exit code is 1. By default a step's reward is the sum of :class:`CodeSafety` and :class:`CodeQuality`. Only a
    step limit ends the episode.
    """

    name = "envweave/Coding-v0"
    how_to_act = (
        "Write a Python program, alone or in a ```python block. Later programs see its variables. You are "
        "shown what it prints and the value of its last expression."
    )

    @configured(CodingConfig)
    def __init__(self, config: CodingConfig) -> None:
        self._safety = CodeSafety(tuple(config.allow) if type(config.allow) is list else config.allow)
        default = Composite(self._safety, CodeQuality())
        super().__init__(config, transform=default if config.transform is None else config.transform)
        self.observation_space = Dict(
            {
                "stdout": Unicode(MAX_OUTPUT + MAX_VALUE),
                "stderr": Unicode(MAX_OUTPUT + MAX_ERROR),
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
            "stdout": _joined(done.stdout, _value_text(done)),
            "stderr": _joined(done.stderr, done.error),
            "exit_code": self._last_exit_code,
        }

    def _remarks(self, code: str, done: Execution) -> dict[str, Any]:
        """Return the ``info`` entries of a step: the program, and its safety violations if it has any."""
        violations = self._safety.violations(code)
        return {"last_code": code, **({"safety_violation": ", ".join(violations)} if violations else {})}

    def episode_state(self) -> dict[str, Any]:
        """Return the exit code of the last step, the isolation level and the types of the variables."""
        return {"last_exit_code": self._last_exit_code, **super().episode_state()}


def _value_text(done: Execution) -> str:
    """Return the value of the last expression as JSON if that is possible and short enough, else its ``repr``."""
    if not done.shown or done.value == done.shown:
        return done.shown
    text = json.dumps(done.value)
    return text if len(text) <= MAX_VALUE else done.shown


def _joined(printed: str, last: str) -> str:
    """Append a last line to the output, with a line break before it if one is missing."""
    if not printed or not last or printed.endswith("\n"):
        return printed + last
    return f"{printed}\n{last}"
