"""Source of the server's API key: an option, a file, the environment, or a random one.

The SDK sends only keys that begin with ``tml-``.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support.token_file import checked_token

VARIABLE = "TINKER_API_KEY"
_BEGINNING = "tml-"


def find_key(key: str | None, file: str | None) -> tuple[str, bool]:
    """Return the key, and whether it is a random one that must be shown."""
    if key is not None and file is not None:
        raise InvalidArgument("--key and --key-file are both given; give one of them")
    if key is not None:
        return _checked(key, "--key"), False
    if file is not None:
        return _key_in(Path(file)), False
    given = os.environ.get(VARIABLE)
    if given:
        return _checked(given.strip(), VARIABLE), False
    return _new_key(), True


def _new_key() -> str:
    return f"{_BEGINNING}{secrets.token_urlsafe(24)}"


def _checked(key: str, where: str) -> str:
    if not key.startswith(_BEGINNING):
        raise InvalidArgument(f"{where} does not begin with {_BEGINNING!r}, and the SDK sends no other keys")
    return checked_token(key, where)


def _key_in(path: Path) -> str:
    """Return the key in a file; write a random one to it first if the file does not exist."""
    try:
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{_new_key()}\n")
        return _checked(path.read_text(encoding="ascii", errors="replace").strip(), f"--key-file {path}")
    except OSError as error:
        raise InvalidArgument(f"--key-file {path} cannot be used: {error.strerror}") from None
