"""GSM8K as an environment: it asks a word problem and compares the number in the reply with the result."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.config import configured
from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.spaces import Chat, Unicode
from envweave_gym.core.thinking import without_thinking
from envweave_gym.data.gsm8k import GSM8K, MAX_QUESTION, Problem
from envweave_gym.data.sources import rows_of
from envweave_gym.envs.gsm8k.gsm8k_config import GSM8KConfig
from envweave_gym.envs.gsm8k.number_answers import Answer, numbers_in, read_answer, read_number
from envweave_gym.envs.tasks.task_env import AS_JSON, TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

Stepped = tuple[Any, float, bool, bool, dict[str, Any]]

MAX_REPLY = 65_536
"""Limit of a reply in characters."""
_MAX_HINT_CHARS = 2048  # a longer first step is not given as a hint


class GSM8KEnv(TaskEnv[Problem, Any, str]):
    """Environment that asks one word problem and ends with the reply, or after a second try with a hint.

    The number in the reply is compared exactly, as a fraction. ``info`` of every reset and step has ``correct``,
    ``formatted`` (whether the answer is after ``####`` or in a box), ``answer`` (the number that was read, or
    ``""``) and ``expected``, which is ``""`` until the episode is over.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = "envweave/GSM8K-v0"

    @configured(GSM8KConfig)
    def __init__(self, config: GSM8KConfig) -> None:
        self.config, self.render_mode = config, config.render_mode
        longest = (
            len(config.system_prompt)
            + MAX_QUESTION
            + 64
            + config.hint_turns * (MAX_REPLY + 2 * _MAX_HINT_CHARS)
        )
        text: Space[Any] = Unicode(longest)
        self.observation_space = text if config.observation == "text" else Chat(AS_JSON * longest)
        self.action_space = Unicode(MAX_REPLY)
        rows = rows_of(GSM8K, config.dataset, config.split)
        super().__init__(rows, dataset=config.dataset, split=config.split)
        self._problem = Problem("", "#### 0")
        self._expected = Fraction(0)
        self._messages: list[dict[str, str]] = []
        self._replies = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Ask the problem that the seed draws, or the one named in ``options``."""
        self._problem = problem = self.choose(seed, options)
        expected = read_number(problem.final)
        if expected is None:
            raise InvalidArgument(
                f"{self.name}: the result of problem {self.index}, {shown(problem.final)}, is no number; "
                "give a data set whose results are numbers"
            )
        self._expected, self._replies, self._messages = expected, 0, []
        if self.config.system_prompt:
            self._say("system", self.config.system_prompt)
        self._say("user", problem.question)
        return self._shown(), self._info(None)

    def step(self, action: str) -> Stepped:
        """Read the answer of a reply; end the episode, or give a hint after a first wrong reply."""
        answer = read_answer(without_thinking(action))
        correct = answer is not None and answer.value == self._expected
        self._replies += 1
        if not correct and self._replies <= self.config.hint_turns:
            self._messages.append({"role": "assistant", "content": action})
            self._say("user", self._hint(answer))
            return self._shown(), 0.0, False, False, self._info(answer)
        formatted = answer is not None and answer.formatted
        self.emit(metrics(correct=int(correct), formatted=int(formatted), replies=self._replies))
        reward = self.config.reward(correct=correct, formatted=formatted, hinted=self._replies > 1)
        info = self._info(answer) | {"correct": correct, "expected": self._problem.final}
        return self._shown(), reward, True, False, info

    def _info(self, answer: Answer | None) -> dict[str, Any]:
        """Return the info of a reset or step within an episode; the last step sets ``correct`` and ``expected``."""
        return {
            "index": self.index,
            "split": self.split,
            "correct": False,
            "formatted": answer is not None and answer.formatted,
            "answer": "" if answer is None else str(answer),
            "expected": "",
        }

    def _hint(self, answer: Answer | None) -> str:
        """Return the first step of the solution as a hint, or a general hint if that step reveals the answer."""
        opening = "I can read no answer there." if answer is None else "That is not right."
        first, *more = self._problem.steps or ("",)
        # A step that contains the result would give the answer away.
        if more and len(first) <= _MAX_HINT_CHARS and self._expected not in numbers_in(first):
            return f"{opening} This is a first step: {first} Go on from there, and answer again."
        return f"{opening} Go through your steps, and answer again."

    def _say(self, role: str, content: str) -> None:
        self._messages.append({"role": role, "content": content})
        self.emit(message(role, content))

    def _shown(self) -> Any:
        if self.config.observation == "text":
            return self._text()
        return [one.copy() for one in self._messages]

    def _text(self) -> str:
        return "\n\n".join([one["content"] for one in self._messages])

    def render(self) -> Any:
        """Return the conversation so far."""
        return self._text() if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the problem, the number of replies and their limit."""
        return {
            **super().episode_state(),
            "replies": self._replies,
            "max_replies": self.config.hint_turns + 1,
        }
