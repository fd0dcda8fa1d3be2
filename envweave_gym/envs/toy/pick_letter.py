"""PickLetter: a prompt names one of four letters, and the action is that letter."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Discrete

from envweave_gym.core.spaces import Unicode
from envweave_gym.envs.tasks.option_letters import LETTERS, read_letter
from envweave_gym.envs.tasks.task_env import TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

OPTIONS = 4


class PickLetterEnv(TaskEnv[str, str, Any]):
    """Environment that asks for one of the letters A to D in its prompt, ``pick B``; the reply ends the episode.

    The letter earns 1.0, another 0.0. Chance is 0.25, so a model that learns is soon above one that does not:
    the smallest task for a language model.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = "envweave/PickLetter-v0"

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(LETTERS[:OPTIONS], dataset="letters", split="all")
        self.render_mode = render_mode
        self.observation_space, self.action_space = Unicode(32), Discrete(OPTIONS)
        self._prompt = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask for the letter that the seed draws, or the one named in ``options``."""
        self._prompt = f"pick {self.choose(seed, options)}"
        self.emit(message("user", self._prompt))
        return self._prompt, self.task_info()

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare the letter with the one in the prompt, which ends the episode."""
        correct = int(action) == self.index
        self.emit(metrics(correct=int(correct)))
        return self._prompt, float(correct), True, False, {**self.task_info(), "correct": correct}

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the index of the letter that a reply chooses: ``B``, ``I pick B.``."""
        return read_letter(text, OPTIONS)

    def render(self) -> Any:
        """Return the prompt."""
        return self._prompt if self.render_mode == "ansi" else None
