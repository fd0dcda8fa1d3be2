"""Wrong options for a word problem: the results of common mistakes.

Candidates are the intermediate results of the solution, its last calculation with a term forgotten or with
another operation, the result with a step too many or too few, and factors of 2 and 10. A draw decides how
many of the chosen ones exceed the result, from none to all three. So the result is the largest, the second,
the third and the smallest option equally often, and its rank tells nothing. All options have the same
notation.
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

WRONG = 3
"""The number of wrong options of a problem."""


class Form(msgspec.Struct, frozen=True):
    """The notation of the result and of every option: an integer multiple of ``1 / scale``, its *parts*."""

    scale: int = 1
    places: int = 0
    is_ratio: bool = False
    has_groups: bool = False

    def parts(self, value: int | Fraction) -> int | None:
        """Return the number of parts; ``None`` if the value cannot be written in this form."""
        parts = value * self.scale  # an int has a denominator too
        return parts.numerator if parts.denominator == 1 else None

    def written(self, parts: int) -> str:
        """Return the text of this number of parts."""
        if self.is_ratio:
            return f"{parts}/{self.scale}"
        sign, (whole, rest) = "-" if parts < 0 else "", divmod(abs(parts), self.scale)
        text = f"{whole:,}" if self.has_groups else str(whole)
        return f"{sign}{text}.{rest:0{self.places}d}" if self.places else sign + text


def form_of(text: str, value: Fraction) -> Form:
    """Return the notation of a result."""
    if ratio := re.fullmatch(r"[-+]?\d+/(\d+)", text):
        return Form(scale=int(ratio[1]), is_ratio=True)
    decimals = re.search(r"\.(\d+)", text)
    places = len(decimals[1]) if decimals else 0
    if (value * 10**places).denominator != 1:
        return Form(scale=value.denominator, is_ratio=True)
    return Form(10**places, places, has_groups=bool(re.search(r"\d,\d", text)))


def options_of(problem: Problem) -> tuple[str, tuple[str, ...]]:
    """Return the result of a problem and its wrong options, which depend on the problem alone."""
    value = read_number(problem.final)
    if value is None:
        raise ValueError(f"the result {problem.final!r} is no number")
    form = form_of(problem.final, value)
    right = (value * form.scale).numerator
    wrong = _chosen(right, _slips(problem, right, form), crc32(problem.question.encode()))
    return form.written(right), tuple(form.written(parts) for parts in wrong)


def _chosen(right: int, slips: list[int], key: int) -> list[int]:
    """Choose three mistakes; the draw says how many of them are above the result, if there is room below."""
    draw = mix(key)
    # The rank of the result must be uniform, or "take the second largest" would be a strategy.
    wanted = draw % (WRONG + 1)
    # Few word problems have a negative result: such an option would be excluded at a glance.
    lowest = None if right < 0 else min(right, 1)  # no negative options beside a positive result
    fitting = [one for one in dict.fromkeys(slips) if lowest is None or one >= lowest]
    below = _drawn([one for one in fitting if one < right], WRONG - wanted, right, -1, mix(draw, 1))
    if right >= 0:
        below = [one for one in below if one >= 0]
    above = _drawn([one for one in fitting if one > right], WRONG - len(below), right, 1, mix(draw, 2))
    return above + below


def _drawn(slips: list[int], count: int, right: int, sign: int, draw: int) -> list[int]:
    """Draw ``count`` mistakes, plausible ones more often; fill up with numbers close to the result."""
    order = sorted(range(len(slips)), key=lambda place: place * 2 + (draw >> 3 * place) % 8)
    chosen, step, one = [slips[place] for place in order[:count]], 1, right
    # Numbers that fill up end with as many zeros as the result, so that a round one does not give it away.
    while right and right % (step * 10) == 0:  # a round result gets round neighbours
        step *= 10
    while len(chosen) < count:
        one += sign * step
        if one not in chosen:
            chosen.append(one)
    return chosen


# Slips

_NUMERAL = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_TWO_TERMS = re.compile(r"(-?[\d.]+)([-+*/])([\d.]+)")
_SUM = re.compile(r"-?[\d.]+(?:[-+][\d.]+){2,}")
_TERM = re.compile(r"-?[\d.]+")
_DECIMAL = re.compile(r"-?(?:\d+\.?\d*|\.\d+)")
_LONGEST = 40
_MAX_GIVEN_NUMBERS = 12
"""Limit of numbers of a question that make wrong options."""


def _slips(problem: Problem, right: int, form: Form) -> list[int]:
    """Return the results of common mistakes, the most plausible first."""
    last, results = "", []
    for terms, result in problem.calculations:
        parts = _parts(result, form)
        if parts == right:
            last = terms
        elif parts is not None:
            results.append(parts)
    given = [_parts(text, form) for text in _NUMERAL.findall(problem.question)[:_MAX_GIVEN_NUMBERS]]
    slips = [*reversed(results), *_other_calculations(last, right, form)]
    for one in (*results, *given):
        if one is not None:
            slips += (right + one, right - one)
    slips += (right * 2, right * 10)
    slips += (right // by for by in (2, 10) if right % by == 0)
    return slips


def _parts(text: str, form: Form) -> int | None:
    """Convert a number of a solution to parts; ``None`` if it cannot be written in this form."""
    value = _number(text)
    return None if value is None else form.parts(value)


def _number(text: str) -> int | Fraction | None:
    """Read a number in the notation of solutions."""
    if len(text) > _LONGEST:
        return None
    if text.isdecimal():
        return int(text)
    plain = text.replace(",", "")
    return Fraction(plain) if _DECIMAL.fullmatch(plain) else None


def _other_calculations(terms: str, right: int, form: Form) -> Iterator[int]:
    """Yield results of the last calculation with another operation, or of a sum without one term."""
    plain = terms.replace(",", "").replace(" ", "")
    if two := _TWO_TERMS.fullmatch(plain):
        values = (parts for value in _operated(*two.groups()) if (parts := form.parts(value)) is not None)
    elif _SUM.fullmatch(plain):
        values = (right - parts for term in _TERM.findall(plain) if (parts := _parts(term, form)) is not None)
    else:
        return
    yield from values


def _operated(left: str, sign: str, right: str) -> list[int | Fraction]:
    """Return the results of the other operations on two numbers."""
    x, y = _number(left), _number(right)
    if x is None or y is None:
        return []
    others = {"+": x + y, "-": abs(x - y), "*": x * y, "/": Fraction(x, y) if y else x}
    return [value for operation, value in others.items() if operation != sign]
