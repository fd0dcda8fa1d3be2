"""The class ``Draft``, which templates of word problems use to draw numbers and to write a solution's steps."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from envweave_gym.core.seeding import mix

Number = int | Fraction

_WOMEN = (
    *("Amara", "Bianca", "Chloe", "Divya", "Elena", "Fatima", "Grace", "Hana", "Ines", "Joy", "Kira"),
    *("Lucia", "Maya", "Nadia", "Olga", "Priya", "Rosa", "Sofia", "Tess", "Uma", "Vera", "Wendy"),
)
_MEN = (
    *("Adam", "Boris", "Carlos", "Dmitri", "Emil", "Farid", "George", "Hugo", "Ivan", "Jamal", "Kofi"),
    *("Liam", "Marco", "Noah", "Omar", "Pavel", "Quinn", "Raj", "Samuel", "Tomas", "Victor", "Wei"),
)


def format_number(number: Number) -> str:
    """Return a number as the text in solutions: ``24``, ``0.2``, ``-3``.

    It must have a finite decimal expansion.
    """
    if number.denominator == 1:
        return str(number.numerator)
    digits = 1
    while (number * 10**digits).denominator != 1:
        digits += 1
    return f"{float(number):.{digits}f}"


class Draft:
    """Draws the numbers and words of one problem, and collects the lines of its solution.

    Draws hash the seed ``key`` with a counter, so the same key gives the same problem on every machine.
    """

    def __init__(self, key: int) -> None:
        self.lines: list[str] = []
        self._key, self._draws = key, 0

    def draw(self, end: int) -> int:
        """Draw an int from 0 to ``end - 1``."""
        self._draws += 1
        return mix(self._key, self._draws) % end

    def number(self, low: int, high: int, step: int = 1) -> int:
        """Draw one of ``low``, ``low + step``, … up to ``high``."""
        return low + step * self.draw((high - low) // step + 1)

    def pick(self, *options: Any) -> Any:
        """Draw one of the options."""
        return options[self.draw(len(options))]

    def person(self) -> tuple[str, str, str]:
        """Draw a name; return it with its pronouns: ``("Amara", "she", "her")``."""
        names, he, his = self.pick((_WOMEN, "she", "her"), (_MEN, "he", "his"))
        return self.pick(*names), he, his

    def step(self, line: str, *terms: Number | str) -> Number:
        """Compute ``terms`` from left to right, append ``line`` to the solution, and return the result.

        In the line, ``#`` is replaced by the annotated calculation. ``terms`` alternate between numbers and the
        signs ``+ - * /``; signs have no precedence.
        """
        value = Fraction(terms[0])
        for sign, term in zip(terms[1::2], terms[2::2], strict=True):
            value = _OPERATIONS[str(sign)](value, Fraction(term))
        result = int(value) if value.denominator == 1 else value
        expression = "".join(term if isinstance(term, str) else format_number(term) for term in terms)
        unit = "$" if "$#" in line else ""
        calculation = f"{expression} = {unit}<<{expression}={format_number(result)}>>{format_number(result)}"
        self.lines.append(line.replace(f"{unit}#", calculation))
        return result


_OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": Fraction.__add__,
    "-": Fraction.__sub__,
    "*": Fraction.__mul__,
    "/": Fraction.__truediv__,
}
