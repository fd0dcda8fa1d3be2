"""Names of tools and their parameters as Python has them."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Container

_FOUND = frozenset({*vars(builtins), "ToolError", "math"})
"""What programs find before any tool."""


def identifier(name: str, *, taken: Container[str] = ()) -> str:
    """The name as an identifier: what cannot stand in one is ``_``, and ``_`` makes it a new one."""
    plain = re.sub(r"\W", "_", name) or "_"
    if not plain.isidentifier():
        plain = f"_{plain}"
    while keyword.iskeyword(plain) or plain in taken:
        plain += "_"
    return plain


def function_name(name: str) -> str:
    """The name as one that hides nothing programs find: ``get-sum`` is ``get_sum``, ``open`` is ``open_``."""
    return identifier(name, taken=_FOUND)
