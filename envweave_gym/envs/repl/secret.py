"""The class ``Secret``, which keeps keys and tokens out of ``repr``, pickles and tracebacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from envweave_gym.core.faults import InvalidArgument

HIDDEN = "…"
"""Text that is shown in place of a secret."""


class Secret:
    """A secret text, which only :meth:`reveal` returns; ``repr`` and pickles do not contain it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        if not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            raise InvalidArgument("a secret is one line of ASCII characters; give it as such a string")
        self._text = text

    def reveal(self) -> str:
        """Return the secret text."""
        return self._text

    def hidden_in(self, text: str) -> str:
        """Return ``text`` with every occurrence of the secret replaced by :data:`HIDDEN`."""
        return text.replace(self._text, HIDDEN) if self._text else text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN if self._text else ''})"

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        # The unpickled copy is empty, as a pickle may be stored or sent to another machine.
        return Secret, ()


def check_reference(name: str, reference: str | None) -> None:
    """Raise ``InvalidArgument`` if a value is not ``env:NAME`` or ``file:PATH``, as it may be the secret itself."""
    if reference is not None and not reference.startswith(("env:", "file:")):
        raise InvalidArgument(f"{name} is a reference, 'env:NAME' or 'file:PATH', not the secret itself")


def secret_at(reference: str | None) -> Secret:
    """Return the secret that ``env:NAME`` or ``file:PATH`` refers to; an empty one if there is none to read."""
    kind, _, where = (reference or "").partition(":")
    if kind == "env":
        return Secret(os.environ.get(where, "").strip())
    try:
        return Secret(Path(where).read_text("utf-8").strip()) if kind == "file" else Secret()
    except (OSError, ValueError):
        return Secret()
