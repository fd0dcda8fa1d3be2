"""Compares the answer of a program with the expected one, whether they are numbers, lists, values or texts.

The answers to GSM8K's word problems are not compared here but in :mod:`envweave_gym.envs.gsm8k.gsm8k`, exactly, as
fractions that :mod:`envweave_gym.envs.gsm8k.number_answers` reads from replies.
"""

from __future__ import annotations

import ast
import cmath
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from envweave_gym.rewards.program_reading import parse

Number = int | float | complex | Fraction

# The repr of a number that is no plain literal.
_WRAPPED_NUMBER = re.compile(
    r"(?:(?:np|numpy)\.(?:u?int|float|complex|longdouble)\d*|Fraction|Decimal)\((.*)\)"
)


def equal(found: Any, expected: Any, tolerance: float) -> bool:
    """Return whether the answer ``found`` equals the expected one.

    Numbers may differ by ``tolerance``; answers that are no numbers must be equal by value or as texts.
    """
    found, expected = _plain(found), _plain(expected)
    left, right = _number(found), _number(expected)
    if left is not None and right is not None:
        return _close(left, right, tolerance)
    if isinstance(found, str) and not isinstance(expected, str):
        found = _literal(found)
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(
            equal(a, b, tolerance) for a, b in zip(found, expected, strict=True)
        )
    if type(found) is type(expected) and found == expected:
        return True
    return not _texts(found).isdisjoint(_texts(expected))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _texts(value: Any) -> frozenset[str]:
    try:
        return frozenset({str(value).strip(), repr(value)})
    except (ValueError, RecursionError):  # an int of too many digits, a list too deep
        return frozenset()


def _number(value: Any) -> Number | None:
    if isinstance(value, Number):
        return None if isinstance(value, bool) else value  # True is an int
    return _number_in(str(value)) if isinstance(value, str | Decimal | np.number) else None


def _number_in(text: str) -> Number | None:
    text = text.strip()
    if wrapped := _WRAPPED_NUMBER.fullmatch(text):
        text = wrapped[1].strip("'").replace(", ", "/")
    for read in (int, float, _ratio, complex):  # int first, as a float would lose digits
        try:
            number = read(text)
        except (ValueError, ZeroDivisionError):
            continue
        return None if _is_beyond(number, text) else number
    return None


def _is_beyond(number: Number, text: str) -> bool:
    """Return whether ``text`` is a number beyond the range of floats, which would equal all others as infinity."""
    return isinstance(number, float | complex) and cmath.isinf(number) and any(map(str.isdigit, text))


def _ratio(text: str) -> Fraction:
    numerator, denominator = text.split("/")
    return Fraction(int(numerator), int(denominator))  # Fraction("1e999999999") would compute for ever


def _close(left: Number, right: Number, tolerance: float) -> bool:
    try:
        return left == right or abs(left - right) <= tolerance
    except OverflowError:  # an int beyond all floats
        return False


def _literal(text: str) -> Any:
    """Return the value of a Python literal; if ``text`` is no literal, return it unchanged."""
    match parse(text.strip()):
        case ast.Module(body=[ast.Expr(value=node)]):
            try:
                return ast.literal_eval(node)
            except (ValueError, TypeError, RecursionError, MemoryError):
                return text
        case _:
            return text
