"""Computes three wrong options for a multiple-choice word problem: the results of common mistakes.

Such mistakes are: stopping at an intermediate result, a last calculation with a forgotten term or another
operation, one step too many or too few, and a factor of 2 or 10. A draw decides how many of the three exceed
the right result, from none to all. So the right result is the largest, second, third and smallest option
equally often, and its rank tells nothing. All options have the same notation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from zlib import crc32

import msgspec

from envweave_gym.core.seeding import mix
from envweave_gym.data.gsm8k import Problem
from envweave_gym.envs.gsm8k.number_answers import read_number

WRONG_OPTIONS = 3
"""The number of wrong options of a problem."""


class Notation(msgspec.Struct, frozen=True):
    """A notation for numbers: decimals of one length, or fractions with one denominator.

    A number is held as its *parts*, the integer ``number * scale``: 0.25 is 25 parts at a scale of 100.
    """

    scale: int = 1
    """The denominator of all numbers in this notation."""
    places: int = 0
    """Number of digits after the decimal point."""
    is_ratio: bool = False
    """Whether numbers are written as fractions, like ``3/4``."""
    has_groups: bool = False
    """Whether thousands are separated by commas."""

    def parts(self, value: int | Fraction) -> int | None:
        """Return the integer ``value * scale``; ``None`` if the product is no integer.

        Such a value cannot be written in this notation.
        """
        parts = value * self.scale  # an int has a denominator too
        return parts.numerator if parts.denominator == 1 else None

    def text_of(self, parts: int) -> str:
        """Return the text of the number ``parts / scale`` in this notation."""
        if self.is_ratio:
            return f"{parts}/{self.scale}"
        sign, (whole, rest) = "-" if parts < 0 else "", divmod(abs(parts), self.scale)
        text = f"{whole:,}" if self.has_groups else str(whole)
        return f"{sign}{text}.{rest:0{self.places}d}" if self.places else sign + text


def notation_of(text: str, value: Fraction) -> Notation:
    """Return the notation in which ``text`` writes the number ``value``."""
    if ratio := re.fullmatch(r"[-+]?\d+/(\d+)", text):
        return Notation(scale=int(ratio[1]), is_ratio=True)
    decimals = re.search(r"\.(\d+)", text)
    places = len(decimals[1]) if decimals else 0
    if (value * 10**places).denominator != 1:
        return Notation(scale=value.denominator, is_ratio=True)
    return Notation(10**places, places, has_groups=bool(re.search(r"\d,\d", text)))


def options_of(problem: Problem) -> tuple[str, tuple[str, ...]]:
    """Return the right option of a problem and its wrong options as texts; they depend on the problem alone."""
    value = read_number(problem.final)
    if value is None:
        raise ValueError(f"the result {problem.final!r} is no number")
    notation = notation_of(problem.final, value)
    right = (value * notation.scale).numerator
    wrong = _chosen(right, _mistakes(problem, right, notation), crc32(problem.question.encode()))
    return notation.text_of(right), tuple(notation.text_of(parts) for parts in wrong)


def _chosen(right: int, mistakes: list[int], key: int) -> list[int]:
    """Return three wrong results: some of ``mistakes``, and numbers near ``right`` if there are too few.

    ``key`` seeds the draw of how many exceed ``right``, 0 to 3 with equal chance, so that the rank of the right result
    tells nothing. More than drawn exceed it if it is so small that too few numbers from 0 lie below it.
    """
    draw = mix(key)
    # The rank of the result must be uniform, or "take the second largest" would be a strategy.
    wanted = draw % (WRONG_OPTIONS + 1)
    # Few word problems have a negative result, so beside a positive one such an option is excluded at a glance.
    lowest = None if right < 0 else min(right, 1)
    fitting = [one for one in dict.fromkeys(mistakes) if lowest is None or one >= lowest]
    below = _drawn([one for one in fitting if one < right], WRONG_OPTIONS - wanted, right, -1, mix(draw, 1))
    if right >= 0:
        below = [one for one in below if one >= 0]
    above = _drawn(
        [one for one in fitting if one > right], WRONG_OPTIONS - len(below), right, 1, mix(draw, 2)
    )
    return above + below


def _drawn(mistakes: list[int], count: int, right: int, sign: int, draw: int) -> list[int]:
    """Draw ``count`` of ``mistakes``, the first ones more often; if there are too few, add numbers near ``right``.

    ``sign`` is 1 to add numbers above ``right``, -1 to add numbers below it; ``draw`` is the seed.
    """
    order = sorted(range(len(mistakes)), key=lambda index: index * 2 + (draw >> 3 * index) % 8)
    chosen, step, one = [mistakes[index] for index in order[:count]], 1, right
    # Added numbers end with as many zeros as the result; otherwise a round result would give itself away.
    while right and right % (step * 10) == 0:
        step *= 10
    while len(chosen) < count:
        one += sign * step
        if one not in chosen:
            chosen.append(one)
    return chosen


# Mistakes

_NUMERAL = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_TWO_TERMS = re.compile(r"(-?[\d.]+)([-+*/])([\d.]+)")
_SUM = re.compile(r"-?[\d.]+(?:[-+][\d.]+){2,}")
_TERM = re.compile(r"-?[\d.]+")
_DECIMAL = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_MAX_NUMERAL_CHARS = 40  # longer ones are ignored, as int() of many digits takes quadratic time
_MAX_GIVEN_NUMBERS = 12
"""Limit of the numbers of a question that are added to the result, or subtracted, to get wrong options."""


def _mistakes(problem: Problem, right: int, notation: Notation) -> list[int]:
    """Return the results of common mistakes, each times ``notation.scale``, the most plausible first.

    ``right`` is the right result in the same form. It may be among them, and so may duplicates.
    """
    last, results = "", []
    for terms, result in problem.calculations:
        parts = _parts(result, notation)
        if parts == right:
            last = terms
        elif parts is not None:
            results.append(parts)
    given = [_parts(text, notation) for text in _NUMERAL.findall(problem.question)[:_MAX_GIVEN_NUMBERS]]
    mistakes = [*reversed(results), *_other_calculations(last, right, notation)]
    for one in (*results, *given):
        if one is not None:
            mistakes += (right + one, right - one)
    mistakes += (right * 2, right * 10)
    mistakes += (right // by for by in (2, 10) if right % by == 0)
    return mistakes


def _parts(text: str, notation: Notation) -> int | None:
    """Read a number and return it times ``notation.scale``; ``None`` if it is no number or the product no integer."""
    value = _number(text)
    return None if value is None else notation.parts(value)


def _number(text: str) -> int | Fraction | None:
    """Read an integer or decimal such as ``-1,000.5``; return ``None`` for any other text."""
    if len(text) > _MAX_NUMERAL_CHARS:
        return None
    if text.isdecimal():
        return int(text)
    plain = text.replace(",", "")
    return Fraction(plain) if _DECIMAL.fullmatch(plain) else None


def _other_calculations(terms: str, right: int, notation: Notation) -> Iterator[int]:
    """Yield wrong results of the calculation ``terms``, each times ``notation.scale``.

    Two terms are combined by each other operation; a longer sum, with the result ``right``, loses one term each.
    """
    plain = terms.replace(",", "").replace(" ", "")
    if two := _TWO_TERMS.fullmatch(plain):
        values = (parts for value in _operated(*two.groups()) if (parts := notation.parts(value)) is not None)
    elif _SUM.fullmatch(plain):
        values = (
            right - parts for term in _TERM.findall(plain) if (parts := _parts(term, notation)) is not None
        )
    else:
        return
    yield from values


def _operated(left: str, sign: str, right: str) -> list[int | Fraction]:
    """Return the results of the three operations other than ``sign`` on two numbers."""
    x, y = _number(left), _number(right)
    if x is None or y is None:
        return []
    others = {"+": x + y, "-": abs(x - y), "*": x * y, "/": Fraction(x, y) if y else x}
    return [value for operation, value in others.items() if operation != sign]
