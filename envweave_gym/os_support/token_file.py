"""Access tokens of servers: the check of their form, and files that hold one."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument

_SHORTEST_CHARS, _LONGEST_CHARS = 8, 4096
"""Limits of a token's length; shorter tokens are soon guessed."""


def checked_token(token: str, where: str) -> str:
    """Return ``token`` if it is long enough and can be sent in a header, else raise ``InvalidArgument``.

    ``where`` names its source for the message, which never shows the token.
    """
    is_text = isinstance(token, str)
    if is_text and len(token) > _LONGEST_CHARS:
        raise InvalidArgument(f"{where} holds no token; give at most {_LONGEST_CHARS} characters")
    can_travel = is_text and token.isascii() and token.isprintable() and " " not in token
    if not can_travel or len(token) < _SHORTEST_CHARS:
        raise InvalidArgument(
            f"{where} holds no token; give {_SHORTEST_CHARS} or more printable ASCII characters without spaces"
        )
    return token


def read_token(path: Path) -> str:
    """Return the token in a file; raise :class:`InvalidArgument` if the file holds none."""
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST_CHARS + 1).decode("ascii", "replace")
    except OSError as error:
        raise _unusable(path, error) from None
    return checked_token(text.strip(), f"--token-file {path}")


def token_in(path: Path) -> str:
    """Return the token in a file; write a random one to it first if the file does not exist."""
    try:
        if not path.exists():
            _write(path, secrets.token_urlsafe(32))
        elif path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            print(f"envweave: warning: others may read {path}; chmod 600 it", file=sys.stderr)
    except OSError as error:
        raise _unusable(path, error) from None
    return read_token(path)


def _write(path: Path, token: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{token}\n")
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _unusable(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(f"--token-file {path} cannot be used: {error.strerror}")
