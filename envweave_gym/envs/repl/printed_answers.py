"""Answers that a model has printed, and the comparison with the expected one."""

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
"""The most ``FINAL(`` in an output that are examined."""
_MAX_UNCLOSED = 5
"""The most of them without an end: each is searched to the end of the output."""


def score_of(answer: str, expected: str, match: str) -> float:
    """Return 1 for the expected answer, regardless of case; 0.5 in fuzzy matches if one contains the
    other.
    """
    found, wanted = answer.strip().casefold(), expected.strip().casefold()
    if found == wanted:
        return 1.0
    is_near = match == "fuzzy" and found and wanted and (found in wanted or wanted in found)
    return 0.5 if is_near else 0.0


def printed_answer(text: str, data: Sequence[str] = ()) -> str | None:
    """Return the text in the first ``FINAL(…)`` of an output, or None.

    The same words in ``data`` were only shown, and are no answer. A Python string gives its value.
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
    """Return the name in the first ``FINAL_VAR(…)`` of an output."""
    for match in islice(_FINAL_VAR.finditer(text), _MAX_MATCHES):
        if not _is_shown(match[0], data):
            return match[2]
    return None


def texts_in(value: Any) -> list[str]:
    """Return the texts in the reply to a sub-call: one, or those of a batch."""
    given: list[Any] = value if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str) and text]


def _is_shown(found: str, data: Sequence[str]) -> bool:
    return any(found in one for one in data)


def _end(text: str, start: int) -> int | None:
    """Return the position where the parenthesis opened before ``start`` closes.

    Parentheses in quotes do not count, unless the quote is an apostrophe. If text follows on the line, or
    they do not match, the answer contains parentheses and ends at the end of a line.
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
