"""Parses memory sizes as container engines write them, such as ``512m`` or ``2g``."""

from __future__ import annotations

import re
from typing import Any

from envweave_gym.core.faults import InvalidArgument, shown

_SIZE = re.compile(r"(\d{1,18})([bkmg]?)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LEAST_MEMORY_BYTES = 6 << 20  # the least that container engines accept


def bytes_of(size: Any) -> int | None:
    """Return the bytes of a size, given as an int or a text; ``None`` if it cannot be parsed."""
    match = _SIZE.fullmatch(str(size)) if type(size) in (int, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2].lower()]


def memory_of(memory: Any) -> int:
    """Return the bytes of a memory limit, given as an int or a text.

    Raise ``InvalidArgument`` for other values, and for sizes that are too small for any program.
    """
    size = bytes_of(memory)
    if size is not None and size >= _LEAST_MEMORY_BYTES:
        return size
    raise InvalidArgument(
        f"memory={shown(memory)} is no size; give bytes, or text like '512m' or '2g', from '6m'"
    )
