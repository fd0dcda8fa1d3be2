"""Reads sizes as container engines write them, ``512m`` or ``2g``, wherever this package takes one."""

from __future__ import annotations

import re
from typing import Any

_SIZE = re.compile(r"(\d{1,18})([bkmg]?)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_of(size: Any) -> int | None:
    """The bytes of a size, an int or a text; ``None`` where it is no size."""
    match = _SIZE.fullmatch(str(size)) if type(size) in (int, str) else None
    return None if match is None else int(match[1]) * _UNITS[match[2].lower()]
