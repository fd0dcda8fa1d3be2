"""Finds the answer in a text with ``FINAL(…)`` or ``FINAL_VAR(…)``, and compares it with the expected answer."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

MATCHES = ("exact", "fuzzy")
_FINAL = re.compile(r"(?<![\w.])FINAL\(")
_FINAL_VAR = re.compile(r"(?<![\w.])FINAL_VAR\(\s*(['\"]?)(\w+)\1\s*\)")
_REST = re.compile(r"[ \t]*(?:\n|$)")
_LAST = re.compile(r"\)[ \t]*(?:\n|$)")
_MARK = re.compile(r"\\.|[()'\"]", re.DOTALL)
_STRING = re.compile(r"""(['"])(?:\\.|(?!\1|\\)[^\n])*\1""", re.DOTALL)
_QUOTES = "'\""
_MAX_MATCHES = 50
"""Limit of ``FINAL(`` in an output that are examined."""
_MAX_UNCLOSED = 5
"""Limit of ``FINAL(`` without a closing parenthesis, as each costs a search up to the end of the output."""


def score_of(answer: str, expected: str, match: str) -> float:
    """Return 1 if the answer is the expected one, ignoring case and outer white space, else 0.

    With ``match="fuzzy"`` return 0.5 if one of the two contains the other.
    """
    found, wanted = answer.strip().casefold(), expected.strip().casefold()
    if found == wanted:
        return 1.0
    is_near = match == "fuzzy" and found and wanted and (found in wanted or wanted in found)
    return 0.5 if is_near else 0.0


def printed_answer(text: str, data: Sequence[str] = ()) -> str | None:
    """Return the text in the first ``FINAL(…)`` of an output, or ``None``.

    A ``FINAL(…)`` that also occurs in ``data``, the texts that the program could print, does not count. If the text is
    a Python string literal, its value is returned.
    """
    unclosed = 0
    for match in islice(_FINAL.finditer(text), _MAX_MATCHES):
        end = _end(text, match.end())
        if end is None:
            unclosed += 1
            if unclosed == _MAX_UNCLOSED:
                break
        elif not _is_shown(text[match.start() : end + 1], data):
            return _unquoted(text[match.end() : end])
    return None


def printed_name(text: str, data: Sequence[str] = ()) -> str | None:
    """Return the name in the first ``FINAL_VAR(…)`` of an output that is not in ``data``, or ``None``."""
    for match in islice(_FINAL_VAR.finditer(text), _MAX_MATCHES):
        if not _is_shown(match[0], data):
            return match[2]
    return None


def texts_in(value: Any) -> list[str]:
    """Return the texts in the reply to a sub-call: a list with the one text, or with the texts of a batch."""
    given: list[Any] = value if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str) and text]


def _is_shown(found: str, data: Sequence[str]) -> bool:
    return any(found in one for one in data)


def _end(text: str, start: int) -> int | None:
    """Return the position of the parenthesis that closes the one before ``start``, or ``None``.

    Parentheses in quotes are not counted, unless that fails because a quote is an apostrophe. An answer that
    itself contains parentheses is closed by one at the end of a line; such an answer is assumed if text follows on the
    line, or if parentheses are unbalanced.
    """
    end = None
    for quotes in (_QUOTES, ""):
        end = _balanced(text, start, quotes)
        if end is not None and _REST.match(text, end + 1):
            return end
    last = _LAST.search(text, start)
    if last is None or (end is not None and "\n" in text[end : last.start()]):
        return end
    return end if "FINAL(" in text[start : last.start()] else last.start()


def _balanced(text: str, start: int, quotes: str) -> int | None:
    depth, quote = 1, ""
    for match in _MARK.finditer(text, start):
        mark = match[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in quotes:
            quote = mark
        elif mark in "()":
            depth += 1 if mark == "(" else -1
            if depth == 0:
                return match.start()
    return None


def _unquoted(text: str) -> str:
    text = text.strip()
    if not _STRING.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else text
