"""Secrets that no ``repr``, pickle or traceback shows, and references to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from envweave_gym.core.faults import InvalidArgument

HIDDEN = "…"
"""The text shown in place of a secret."""


class Secret:
    """A text that only :meth:`reveal` returns, and that no ``repr`` and no pickle contains."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        if not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            raise InvalidArgument("a secret is one line of ASCII characters; what was given is none")
        self._text = text

    def reveal(self) -> str:
        """Return the text."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """Replace the secret in a text."""
        return text.replace(self._text, HIDDEN) if self._text else text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN if self._text else ''})"

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        # a pickle may be stored or sent to another machine: the copy is empty
        return Secret, ()


def check_reference(name: str, reference: str | None) -> None:
    """Refuse a secret in place of a reference to one."""
    if reference is not None and not reference.startswith(("env:", "file:")):
        raise InvalidArgument(f"{name} is a reference, 'env:NAME' or 'file:PATH', not the secret itself")


def secret_at(reference: str | None) -> Secret:
    """Read the secret that ``env:NAME`` or ``file:PATH`` refers to; empty without a reference."""
    kind, _, where = (reference or "").partition(":")
    if kind == "env":
        return Secret(os.environ.get(where, "").strip())
    try:
        return Secret(Path(where).read_text("utf-8").strip()) if kind == "file" else Secret()
    except (OSError, ValueError):
        return Secret()
