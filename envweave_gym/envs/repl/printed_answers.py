"""Answers of a REPL: where a model has printed one, and whether it is the expected one."""

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
_MOST = 50
"""So many ``FINAL(`` of an output are looked at."""
_MOST_UNCLOSED = 5


def score_of(answer: str, expected: str, match: str) -> float:
    """1 for the expected answer, whatever its case; where the match is fuzzy, 0.5 for one that holds it, or
    that it holds."""
    found, wanted = answer.strip().casefold(), expected.strip().casefold()
    if found == wanted:
        return 1.0
    is_near = match == "fuzzy" and found and wanted and (found in wanted or wanted in found)
    return 0.5 if is_near else 0.0


def printed_answer(text: str, data: Sequence[str] = ()) -> str | None:
    """What stands in the first ``FINAL(…)`` of an output; ``None`` where there is none.

    What stands in ``data`` in the same words was only shown, and answers nothing. A text that is a string of
    Python is the value of that.
    """
    unclosed = 0
    for match in islice(_FINAL.finditer(text), _MOST):
        end = _end(text, match.end())
        if end is None:
            unclosed += 1
            if unclosed == _MOST_UNCLOSED:
                break
        elif not _is_shown(text[match.start() : end + 1], data):
            return _unquoted(text[match.end() : end])
    return None


def printed_name(text: str, data: Sequence[str] = ()) -> str | None:
    """The variable in the first ``FINAL_VAR(…)`` of an output."""
    for match in islice(_FINAL_VAR.finditer(text), _MOST):
        if not _is_shown(match[0], data):
            return match[2]
    return None


def texts_in(value: Any) -> list[str]:
    """The texts of what a sub-call has given: one, or those of a batch."""
    given: list[Any] = value if isinstance(value, list) else [value]
    return [text for text in given if isinstance(text, str) and text]


def _is_shown(found: str, data: Sequence[str]) -> bool:
    return any(found in one for one in data)


def _end(text: str, start: int) -> int | None:
    """Where the parenthesis that is open at ``start`` closes.

    Parentheses in quotes do not count, unless a quote is but an apostrophe. Where the line goes on after that
    or they do not match, the answer has parentheses of its own, and it ends with a line.
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
