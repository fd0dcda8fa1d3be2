"""An episode that is one question with options: a reply chooses one of them, and it is over."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gymnasium.spaces import Discrete, Space

from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.reply_parsing import require_text
from envweave_gym.core.spaces import Chat, Unicode
from envweave_gym.envs.tasks.choices import LETTERS, lettered, letters_of, read_letter
from envweave_gym.envs.tasks.task_env import AS_JSON, TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

Task = TypeVar("Task")
Observation = Literal["text", "chat"]
Action = Literal["index", "text"]
Reward = Literal["dense", "sparse"]

REWARDS = {"dense": (1.0, 0.1, 0.0), "sparse": (1.0, 0.0, 0.0)}
"""What a reply is worth that is right, that is wrong, and that chooses nothing."""
MAX_REPLY = 32_768
"""No reply is longer, in characters."""


@dataclass(frozen=True)
class Question:
    """A question, its options, and the index of the right one."""

    text: str
    options: tuple[str, ...]
    right: int

    def prompt(self) -> str:
        """The question as a language model is asked."""
        letters = letters_of(len(self.options))
        return f"{self.text}\n\n{lettered(self.options)}\n\nAnswer with one letter: {letters}."


class ChoiceEnv(TaskEnv[Task, Any, Any]):
    """One question with ``options`` options; a subclass writes :meth:`ask`.

    ``observation`` is ``"text"`` (the prompt) or ``"chat"`` (a list of messages). ``action`` is ``"index"``
    (``Discrete``) or ``"text"``, a reply with a letter in it. ``reward="dense"`` pays 1.0 for the right
    option, 0.1 for a wrong one and 0.0 for a reply that chooses none; ``"sparse"`` pays for the right one
    alone. ``info`` of the step has ``correct`` and ``chosen``, the index, which is -1 where none was chosen.
    ``question`` is that of the episode. The stream of the step has the numbers ``correct`` and ``formatted``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        dataset: str,
        split: str,
        options: int,
        longest: int,
        observation: Observation,
        action: Action,
        reward: Reward,
        render_mode: str | None,
    ) -> None:
        super().__init__(tasks, dataset=dataset, split=split)
        self.options, self.render_mode = _checked_options(options), render_mode
        self.observation, self.action = observation, action
        spaces: dict[str, Space[Any]] = {"text": Unicode(longest), "chat": Chat(AS_JSON * longest)}
        self.observation_space = _one_of("observation", observation, spaces)
        actions: dict[str, Space[Any]] = {"index": Discrete(options), "text": Unicode(MAX_REPLY)}
        self.action_space = _one_of("action", action, actions)
        self._pay = _one_of("reward", reward, REWARDS)
        self.question, self._prompt = Question("", ("",) * options, 0), ""

    @abstractmethod
    def ask(self, task: Task) -> Question:
        """The question of the episode; whatever it draws, it draws from ``self.key``."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Ask the question of the seed, or of the task that ``options`` name."""
        self.question = self.ask(self.choose(seed, options))
        self._prompt = self.question.prompt()
        self.emit(message("user", self._prompt))
        return self._shown(), self.task_info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Whether the right option was chosen."""
        chosen = self._chosen(action)
        right, wrong, nothing = self._pay
        correct = chosen == self.question.right
        reward = right if correct else nothing if chosen < 0 else wrong
        self.emit(metrics(correct=int(correct), formatted=int(chosen >= 0)))
        return self._shown(), reward, True, False, {**self.task_info(), "correct": correct, "chosen": chosen}

    def _chosen(self, action: Any) -> int:
        there_are = len(self.question.options)
        if self.action == "index":
            return int(action) if action < there_are else -1
        try:
            return read_letter(action, there_are)
        except InvalidAction:
            return -1

    def _shown(self) -> Any:
        return self._prompt if self.observation == "text" else [{"role": "user", "content": self._prompt}]

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action of a reply: the option that its letter chooses; where actions are text, the reply."""
        require_text(text)
        return text if self.action == "text" else read_letter(text, len(self.question.options))

    def render(self) -> Any:
        """The question as asked."""
        return self._prompt if self.render_mode == "ansi" else None


def _checked_options(options: Any) -> int:
    if isinstance(options, int) and not isinstance(options, bool) and 2 <= options <= len(LETTERS):
        return options
    raise InvalidArgument(f"options={shown(options)} are no options; give an int from 2 to {len(LETTERS)}")


def _one_of(argument: str, value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, str) and value in known:
        return known[value]
    raise InvalidArgument(f"{argument}={shown(value)} is unknown; there are {' and '.join(map(repr, known))}")
