"""Prints aligned tables that fit the terminal, and JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

_UNBOUNDED = 10_000  # columns
_NARROWEST = 30  # columns of the last cell


def screen_width() -> int:
    """Return the width of the terminal in columns; in a pipe, a number that keeps each row on one line."""
    return shutil.get_terminal_size((_UNBOUNDED, 24)).columns


def table(rows: Sequence[Sequence[str]], width: int) -> str:
    """Return rows in aligned columns. The last column wraps; if it is too narrow, it moves below the row."""
    sizes = [max(map(len, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    narrow = width - sum(sizes) - 2 * len(sizes) < _NARROWEST
    return "\n".join(_stacked(row, width) if narrow else _aligned(row, sizes, width) for row in rows)


def _aligned(row: Sequence[str], sizes: list[int], width: int) -> str:
    start = "".join(cell.ljust(size + 2) for cell, size in zip(row[:-1], sizes, strict=True))
    return _filled(row[-1], width, start, " " * len(start)) or start.rstrip()


def _stacked(row: Sequence[str], width: int) -> str:
    return "  ".join(row[:-1]).rstrip() + "\n" + _filled(row[-1], width, "    ", "    ")


def wrapped(text: str, width: int) -> str:
    """Return ``text`` with its own line breaks, and further ones in lines that are too long."""
    return "\n".join(_filled(line, width) for line in text.splitlines())


def _filled(text: str, width: int, first: str = "", rest: str = "") -> str:
    room = max(width, len(rest) + 10)
    return textwrap.fill(text, room, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout, in ASCII."""
    plain = msgspec.json.decode(msgspec.json.encode(document, enc_hook=repr))
    print(json.dumps(plain, indent=2))
