"""Addition: a few-shot prompt of solved sums and an open one; the reply is the result or not."""

from __future__ import annotations

from functools import lru_cache
from itertools import count, islice
from typing import Any, Literal, NamedTuple

import numpy as np

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import named, one_of
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.seeding import mix, mix_many
from envweave_gym.core.spaces import Unicode
from envweave_gym.data.rows import Rows
from envweave_gym.envs.tasks.task_env import TASK_OPTIONS, TaskEnv
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import metrics

LARGEST, MOST_SHOTS = 999, 64
MIN_WIDTH = 10
"""How many numbers there are to add, at least: of fewer, a split might have no sum."""
MAX_REPLY = 4096
"""Limit of a reply in characters."""
_TEST_SHARE = 5  # one pair of five is held out
_SHOTS = 0xADD5  # any number that no other draw from the same key uses
Split = Literal["train", "test"]


class Sum(NamedTuple):
    """Two numbers to add."""

    a: int
    b: int

    @property
    def result(self) -> str:
        """The sum, as the reply must give it."""
        return str(self.a + self.b)

    def question(self) -> str:
        """Return the lines of the prompt for this sum, without its result."""
        return f"Q: {self.a}+{self.b}=\nA:"


class AdditionEnv(TaskEnv[int, str, str]):
    """Environment that asks for a sum behind ``shots`` solved ones; the reply ends the episode.

    The reply earns 1.0 if its first line is the result and nothing else, and otherwise 0.0. The prompt is
    plain text that a model without any training on chats continues. The splits share no pair of numbers, in
    neither order, and solved sums are of the train split. They are drawn for each episode, unless
    ``same_examples`` asks for the same ones in every prompt (but for one that would give the result away), which a
    server then computes only once.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "reset_options": TASK_OPTIONS}
    name = "envweave/Addition-v0"

    def __init__(
        self,
        split: Split = "train",
        shots: int = 3,
        low: int = 10,
        high: int = 49,
        same_examples: bool = False,
        render_mode: str | None = None,
    ) -> None:
        with named(self.name):
            check_arguments(split, shots, low, high)
            if not isinstance(same_examples, bool):
                raise InvalidArgument(f"same_examples={same_examples!r} is no bool; give True or False")
        super().__init__(sums(low, high, split), dataset=f"sums of {low} to {high}", split=split)
        self.shots, self.low, self.high, self.render_mode = shots, low, high, render_mode
        self.same_examples = same_examples
        self._examples = sums(low, high, "train")
        self.observation_space, self.action_space = Unicode(32 * (shots + 1)), Unicode(MAX_REPLY)
        self._sum, self._prompt = Sum(low, low), ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask for the sum that the seed draws, or the one named in ``options``."""
        self._sum = self._sum_of(self.choose(seed, options))
        solved = [f"{one.question()} {one.result}\n" for one in self._draw_examples()]
        self._prompt = "".join(solved) + self._sum.question()
        self.emit(message("user", self._prompt))
        return self._prompt, self.task_info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Compare the first line of the reply with the result, which ends the episode."""
        correct = action.partition("\n")[0].strip() == self._sum.result
        self.emit(metrics(correct=int(correct)))
        return self._prompt, float(correct), True, False, {**self.task_info(), "correct": correct}

    def _sum_of(self, number: int) -> Sum:
        a, b = divmod(number, self.high - self.low + 1)
        return Sum(self.low + a, self.low + b)

    def _draw_examples(self) -> list[Sum]:
        """Draw the solved sums; one with the result that is looked for would give it away, and is left out."""
        drawn = mix(0 if self.same_examples else self.key, _SHOTS)
        rows = (self._examples[mix(drawn, step) % len(self._examples)] for step in count())
        fitting = (one for one in map(self._sum_of, rows) if one.result != self._sum.result)
        return list(islice(fitting, self.shots))

    def render(self) -> Any:
        """Return the prompt."""
        return self._prompt if self.render_mode == "ansi" else None


def check_arguments(split: Any, shots: Any, low: Any, high: Any) -> None:
    """Raise ``InvalidArgument`` for arguments that describe no set of sums."""
    one_of("split", split, ("train", "test"))
    check_int("shots", shots, "no number of solved sums", 0, MOST_SHOTS)
    check_int("low", low, "no smallest number to add", 0, LARGEST)
    check_int("high", high, "no largest number to add", 0, LARGEST)
    if high - low + 1 < MIN_WIDTH:
        raise InvalidArgument(
            f"low={low} and high={high} leave too few sums; give high >= low + {MIN_WIDTH - 1}"
        )


def sums(low: int, high: int, split: str) -> Rows[int]:
    """Return the pairs of numbers of a split, each as ``(a - low) * width + b - low``."""
    return Rows(_pairs(low, high, split), (sums, (low, high, split)))


@lru_cache(maxsize=8)
def _pairs(low: int, high: int, split: str) -> tuple[int, ...]:
    numbers = np.arange(low, high + 1, dtype=np.uint64)
    smaller, larger = np.minimum.outer(numbers, numbers), np.maximum.outer(numbers, numbers)
    held_out = mix_many(smaller * np.uint64(LARGEST + 1) + larger) % np.uint64(_TEST_SHARE) == 0
    return tuple(np.flatnonzero(held_out == (split == "test")).tolist())
