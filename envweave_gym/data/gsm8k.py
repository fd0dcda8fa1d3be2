"""GSM8K: word problems of grade school, each with a solution in steps and its result."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from envweave_gym.data.sources import Source

SPLITS = ("train", "test")
MARK = "#### "
"""The result of a solution stands behind it, on the last line."""
MAX_QUESTION = 16_384
"""No question is longer, in characters."""
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_CALCULATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")


class Problem(msgspec.Struct, frozen=True, gc=False):
    """A question, and the solution as the data set writes it: ``48/2 = <<48/2=24>>24`` and ``#### 72``."""

    question: str
    answer: str

    def __post_init__(self) -> None:
        if len(self.question) > MAX_QUESTION:
            raise ValueError(f"its question has {len(self.question)} characters, more than {MAX_QUESTION}")
        if not self.final:
            raise ValueError(f"its answer does not end in {MARK!r} and a result")

    @property
    def final(self) -> str:
        """The result, as it is written."""
        return self.answer.rpartition(MARK)[2].strip() if MARK in self.answer else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The lines of the solution as people read them."""
        solution = _ANNOTATION.sub("", self.answer.rpartition(MARK)[0])
        return tuple(line.strip() for line in solution.splitlines() if line.strip())

    @property
    def calculations(self) -> tuple[tuple[str, str], ...]:
        """The intermediate calculations, each with its result: ``("48/2", "24")``."""
        return tuple(_CALCULATION.findall(self.answer))


def _synthetic(split: str) -> Sequence[Problem]:
    from envweave_gym.data.problems import problems

    return problems(split)


GSM8K = Source("gsm8k", Problem, "openai/gsm8k", SPLITS, _synthetic, config="main")
