"""Synthetic word problems in the form of GSM8K, each with a computed solution.

A problem is a template filled in with draws from the problem's number, so a number gives the same problem on every
machine. No question occurs twice, neither within a split nor in both.
"""

from __future__ import annotations

from functools import cache
from itertools import count

from envweave_gym.core.seeding import mix
from envweave_gym.data.gsm8k import MARK, Problem
from envweave_gym.data.word_problems.draft import Draft, format_number
from envweave_gym.data.word_problems.templates import TEMPLATES

SIZES = {"train": 4096, "test": 1024}
"""Number of problems in each split."""
_SALT = 0x67736D38  # another number would give other problems


def problems(split: str) -> list[Problem]:
    """Return the problems of a split."""
    train = SIZES["train"]
    return _distinct()[:train] if split == "train" else _distinct()[train:]


@cache
def _distinct() -> list[Problem]:
    """Return the problems of both splits, in the order of their numbers; repeated questions are skipped."""
    found: dict[str, Problem] = {}
    numbers = count()
    while len(found) < sum(SIZES.values()):
        one = problem(next(numbers))
        found.setdefault(one.question, one)
    return [*found.values()]


def problem(number: int) -> Problem:
    """Generate the problem with this number."""
    draft = Draft(mix(_SALT, number))
    question, result = TEMPLATES[number % len(TEMPLATES)](draft)
    return Problem(question, "\n".join([*draft.lines, f"{MARK}{format_number(result)}"]))
