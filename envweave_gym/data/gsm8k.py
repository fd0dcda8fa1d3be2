"""The data set GSM8K: word problems of grade-school mathematics, each with a step-by-step solution and result."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from envweave_gym.data.sources import Source

SPLITS = ("train", "test")
MARK = "#### "
"""Text that separates a solution's steps from its result, at the start of the last line."""
MAX_QUESTION = 16_384
"""Limit of a question's length in characters."""
_ANNOTATION = re.compile(r"<<[^<>]*>>")
_CALCULATION = re.compile(r"<<([^<>]*)=([^<>=]*)>>")


class Problem(msgspec.Struct, frozen=True, gc=False):
    """A row of GSM8K: a question, and the solution as the data set writes it.

    Steps contain annotated calculations, ``48/2 = <<48/2=24>>24``, and the last line is the result, ``#### 72``.
    """

    question: str
    answer: str

    def __post_init__(self) -> None:
        if len(self.question) > MAX_QUESTION:
            raise ValueError(f"its question has {len(self.question)} characters, more than {MAX_QUESTION}")
        if not self.final:
            raise ValueError(f"its answer does not end in {MARK!r} and a result")

    @property
    def final(self) -> str:
        """The result exactly as the data set writes it, without the mark."""
        return self.answer.rpartition(MARK)[2].strip() if MARK in self.answer else ""

    @property
    def steps(self) -> tuple[str, ...]:
        """The lines of the solution without the annotations ``<<…>>`` and without the result."""
        solution = _ANNOTATION.sub("", self.answer.rpartition(MARK)[0])
        return tuple(line.strip() for line in solution.splitlines() if line.strip())

    @property
    def calculations(self) -> tuple[tuple[str, str], ...]:
        """The annotated calculations of the solution, each as a pair such as ``("48/2", "24")``."""
        return tuple(_CALCULATION.findall(self.answer))


def _synthetic(split: str) -> Sequence[Problem]:
    from envweave_gym.data.word_problems.generated_problems import problems

    return problems(split)


GSM8K = Source("gsm8k", Problem, "openai/gsm8k", SPLITS, _synthetic, config="main")
