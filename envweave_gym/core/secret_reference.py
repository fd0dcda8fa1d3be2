"""References to secrets, ``env:NAME`` or ``file:PATH``, and ``Secret``, which keeps one out of ``repr`` and pickles.

Arguments and configurations hold the reference, which is read when the secret is needed. So they can be logged, stored
and sent to other machines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.loopback import is_loopback

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


def is_reference(value: object) -> bool:
    """Return whether a value is a reference to a secret, ``env:NAME`` or ``file:PATH``."""
    return isinstance(value, str) and value.startswith(("env:", "file:"))


def check_reference(name: str, value: object) -> None:
    """Raise ``InvalidArgument`` unless a value is a reference or ``None``, as it may be the secret itself."""
    if value is not None and not is_reference(value):
        raise InvalidArgument(f"{name} is a reference, 'env:NAME' or 'file:PATH', not the secret itself")


def is_private_way(url: str) -> bool:
    """Return whether nobody between this process and the server can read what is sent: TLS, or the same machine."""
    parts = urlsplit(url)
    return parts.scheme != "http" or is_loopback(parts.hostname or "")


def check_encrypted(name: str, url: str) -> None:
    """Raise ``InvalidArgument`` if a token or another secret would go to this URL unencrypted."""
    if not is_private_way(url):
        raise InvalidArgument(
            f"{name}={url}: tokens and other secrets go over https:// only, or to this machine"
        )


def read_reference(reference: str) -> str:
    """Return the secret that a reference leads to, without white space around it.

    Raise ``KeyError`` if the variable is not set, ``OSError`` or ``ValueError`` if the file cannot be read.
    """
    kind, _, where = reference.partition(":")
    return (os.environ[where] if kind == "env" else Path(where).read_text("utf-8")).strip()


def secret_at(reference: str | None) -> Secret:
    """Return the secret that a reference leads to; an empty one if there is none to read."""
    try:
        return Secret("" if reference is None else read_reference(reference))
    except (KeyError, OSError, ValueError):
        return Secret()
