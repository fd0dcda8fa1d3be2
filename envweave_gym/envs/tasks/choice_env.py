"""Base class of multiple-choice environments: an episode is one question, and the reply ends it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gymnasium.spaces import Discrete, Space

from envweave_gym.core.arguments import check_int
from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.core.spaces import Chat, Unicode
from envweave_gym.envs.tasks.choice_config import REWARDS, ChoiceConfig
from envweave_gym.envs.tasks.option_letters import LETTERS, lettered, letters_of, read_letter
from envweave_gym.envs.tasks.task_env import AS_JSON, TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

Task = TypeVar("Task")
MAX_REPLY = 32_768
"""Limit of a reply in characters."""


@dataclass(frozen=True)
class Question:
    """A multiple-choice question: its text, its options in order, and the index of the right one."""

    text: str
    options: tuple[str, ...]
    right: int

    def prompt(self) -> str:
        """Return the question as a prompt for a language model."""
        letters = letters_of(len(self.options))
        return f"{self.text}\n\n{lettered(self.options)}\n\nAnswer with one letter: {letters}."


class ChoiceEnv(TaskEnv[Task, Any, Any]):
    """Environment that asks one multiple-choice question; subclasses implement :meth:`ask`.

    ``options`` is the number of options. ``info`` of the step has ``correct``, and ``chosen``, the index of the
    chosen option or -1 if the reply chooses none. The attribute ``question`` is the question of the episode. The
    event ``metrics`` of the step has ``correct`` and ``formatted``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}

    def __init__(
        self,
        tasks: Sequence[Task],
        config: ChoiceConfig,
        *,
        dataset: str,
        split: str,
        options: int,
        longest: int,
    ) -> None:
        super().__init__(tasks, dataset=dataset, split=split)
        check_int("options", options, "no number of options", 2, len(LETTERS))
        self.options, self.config, self.render_mode = options, config, config.render_mode
        text: Space[Any] = Unicode(longest)
        self.observation_space = text if config.observation == "text" else Chat(AS_JSON * longest)
        self.action_space = Discrete(options) if config.action == "index" else Unicode(MAX_REPLY)
        self.question, self._prompt = Question("", ("",) * options, 0), ""

    @abstractmethod
    def ask(self, task: Task) -> Question:
        """Return the question about a task; random choices are hashes of ``self.key``, which comes from the seed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Ask the question that the seed draws, or that of the task named in ``options``."""
        self.question = self.ask(self.choose(seed, options))
        self._prompt = self.question.prompt()
        self.emit(message("user", self._prompt))
        return self._shown(), self.task_info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare the chosen option with the right one, which ends the episode."""
        chosen = self._chosen(action)
        right, wrong, nothing = REWARDS[self.config.reward]
        correct = chosen == self.question.right
        reward = right if correct else nothing if chosen < 0 else wrong
        self.emit(metrics(correct=int(correct), formatted=int(chosen >= 0)))
        return self._shown(), reward, True, False, {**self.task_info(), "correct": correct, "chosen": chosen}

    def _chosen(self, action: Any) -> int:
        there_are = len(self.question.options)
        if self.config.action == "index":
            return int(action) if action < there_are else -1
        try:
            return read_letter(action, there_are)
        except InvalidAction:
            return -1

    def _shown(self) -> Any:
        return (
            self._prompt if self.config.observation == "text" else [{"role": "user", "content": self._prompt}]
        )

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Return the action of a reply: the index of the option whose letter it chooses, or the text itself."""
        require_text(text)
        return text if self.config.action == "text" else read_letter(text, len(self.question.options))

    def render(self) -> Any:
        """Return the prompt."""
        return self._prompt if self.render_mode == "ansi" else None
