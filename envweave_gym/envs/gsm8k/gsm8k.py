"""GSM8K: a word problem is asked, the reply ends with a number, and the number is right or wrong."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import msgspec
from gymnasium.spaces import Space

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.spaces import Chat, Unicode, encodable
from envweave_gym.core.thinking import without_thinking
from envweave_gym.data.gsm8k import GSM8K, MAX_QUESTION, Problem
from envweave_gym.data.sources import rows_of
from envweave_gym.envs.gsm8k.number_answers import Answer, numbers_in, read_answer, read_number
from envweave_gym.envs.tasks.task_env import AS_JSON, TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

Observation = Literal["text", "chat"]
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]

SYSTEM_PROMPT = (
    "Solve the problem step by step. Then write the answer, which is a number, on a last line behind '#### '."
)
MAX_REPLY = 65_536
"""No reply is longer, in characters."""
MAX_PROMPT = 65_536
"""No system prompt is longer, in characters: every observation has it, and clients of servers may give it."""
_MAX_HINT = 2048


class Rewards(msgspec.Struct, frozen=True, kw_only=True):
    """What an episode is worth; it is paid once, when it ends."""

    correct: float = 1.0
    """For the right number."""
    hinted: float = 0.5
    """For the right number after a hint."""
    wrong: float = 0.0
    """For another number, or none."""
    format: float = 0.0
    """On top of these, for a last reply that gives its answer in the form asked for."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise InvalidArgument(f"reward_on_{name}={shown(value)} is no finite number")

    def of(self, *, correct: bool, formatted: bool, hinted: bool) -> float:
        """What the last reply earns."""
        earned = (self.hinted if hinted else self.correct) if correct else self.wrong
        return float(earned + self.format if formatted else earned)


class GSM8KEnv(TaskEnv[Problem, Any, str]):
    """A word problem; the reply is text, and what counts is the number it gives, compared exactly.

    ``observation`` is ``"text"`` (the prompt) or ``"chat"`` (a list of messages). ``hint_turns=1`` answers a
    wrong first reply with a hint and lets the agent try again. ``info`` of every reset and step has
    ``correct`` and ``formatted``, ``answer`` (the number that was read, ``""`` for none) and ``expected``,
    which is ``""`` until the episode is over.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = "envweave/GSM8K-v0"

    def __init__(
        self,
        dataset: str = GSM8K.hub,
        split: str = "train",
        *,
        observation: Observation = "text",
        system_prompt: str = SYSTEM_PROMPT,
        hint_turns: int = 0,
        reward_on_correct: float = 1.0,
        reward_on_hinted: float = 0.5,
        reward_on_wrong: float = 0.0,
        reward_on_format: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """``system_prompt`` comes before the question; an empty one is left out."""
        self.rewards = Rewards(
            correct=reward_on_correct,
            hinted=reward_on_hinted,
            wrong=reward_on_wrong,
            format=reward_on_format,
        )
        self.system_prompt, self.hint_turns = _checked_prompt(system_prompt), _checked_turns(hint_turns)
        self.observation, self.render_mode = observation, render_mode
        self.observation_space = _observation_space(observation, len(system_prompt), hint_turns)
        self.action_space = Unicode(MAX_REPLY)
        super().__init__(rows_of(GSM8K, dataset, split), dataset=dataset, split=split)
        self._problem = Problem("", "#### 0")
        self._expected = Fraction(0)
        self._messages: list[dict[str, str]] = []
        self._replies = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Ask the problem of the seed, or the one that ``options`` name."""
        self._problem = problem = self.choose(seed, options)
        expected = read_number(problem.final)
        if expected is None:
            raise InvalidArgument(
                f"{self.name}: the result of problem {self.index}, {shown(problem.final)}, is no number; "
                "give a data set whose results are numbers"
            )
        self._expected, self._replies, self._messages = expected, 0, []
        if self.system_prompt:
            self._say("system", self.system_prompt)
        self._say("user", problem.question)
        return self._shown(), self._info(None)

    def step(self, action: str) -> Stepped:
        """Read the answer of a reply."""
        answer = read_answer(without_thinking(action))
        correct = answer is not None and answer.value == self._expected
        self._replies += 1
        if not correct and self._replies <= self.hint_turns:
            self._messages.append({"role": "assistant", "content": action})
            self._say("user", self._hint(answer))
            return self._shown(), 0.0, False, False, self._info(answer)
        formatted = answer is not None and answer.formatted
        self.emit(metrics(correct=int(correct), formatted=int(formatted), replies=self._replies))
        reward = self.rewards.of(correct=correct, formatted=formatted, hinted=self._replies > 1)
        info = self._info(answer) | {"correct": correct, "expected": self._problem.final}
        return self._shown(), reward, True, False, info

    def _info(self, answer: Answer | None) -> dict[str, Any]:
        """The info of a reply that does not end the episode."""
        return {
            "index": self.index,
            "split": self.split,
            "correct": False,
            "formatted": answer is not None and answer.formatted,
            "answer": "" if answer is None else str(answer),
            "expected": "",
        }

    def _hint(self, answer: Answer | None) -> str:
        """The first step of the solution, unless that tells the answer or is all of it."""
        opening = "I can read no answer there." if answer is None else "That is not right."
        first, *more = self._problem.steps or ("",)
        if more and len(first) <= _MAX_HINT and self._expected not in numbers_in(first):
            return f"{opening} This is a first step: {first} Go on from there, and answer again."
        return f"{opening} Go through your steps, and answer again."

    def _say(self, role: str, content: str) -> None:
        self._messages.append({"role": role, "content": content})
        self.emit(message(role, content))

    def _shown(self) -> Any:
        if self.observation == "text":
            return self._text()
        return [one.copy() for one in self._messages]

    def _text(self) -> str:
        return "\n\n".join([one["content"] for one in self._messages])

    def render(self) -> Any:
        """The conversation so far."""
        return self._text() if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Which problem it is, and how many replies there were and may be."""
        return {**super().episode_state(), "replies": self._replies, "max_replies": self.hint_turns + 1}


def _checked_prompt(system_prompt: Any) -> str:
    if isinstance(system_prompt, str) and len(system_prompt) <= MAX_PROMPT and encodable(system_prompt):
        return system_prompt
    raise InvalidArgument(
        f"system_prompt={shown(system_prompt)} is no text of at most {MAX_PROMPT} characters; "
        "give '' for none"
    )


def _checked_turns(hint_turns: Any) -> int:
    if type(hint_turns) is int and hint_turns in (0, 1):
        return hint_turns
    raise InvalidArgument(f"hint_turns={shown(hint_turns)} is neither 0 nor 1")


def _observation_space(observation: Any, prompt: int, hint_turns: int) -> Space[Any]:
    longest = prompt + MAX_QUESTION + 64 + hint_turns * (MAX_REPLY + 2 * _MAX_HINT)
    if observation == "text":
        return Unicode(longest)
    if observation == "chat":
        return Chat(AS_JSON * longest)
    raise InvalidArgument(f"observation={shown(observation)} is unknown; there are 'text' and 'chat'")
