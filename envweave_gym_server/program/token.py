"""Source of a server's access token: an argument, a file, a descriptor, the environment, or a random one."""

from __future__ import annotations

import ctypes
import os
import secrets
from pathlib import Path

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support.token_file import checked_token, token_in

VARIABLE = "ENVWEAVE_TOKEN"
_MOST_BYTES = 4096


def find_token(
    token: str | None = None, *, file: str | None, descriptor: int | None, anonymous: bool
) -> tuple[str | None, bool]:
    """Return the token (``None`` for anonymous access), and whether it is a random one that must be shown."""
    given = _taken_from_environment(VARIABLE)
    if token is not None:
        if anonymous or file is not None or descriptor is not None:
            raise InvalidArgument("token= is given; leave out allow_anonymous, token_file and token_fd")
        return checked_token(token, "token="), False
    if anonymous:
        if file is not None or descriptor is not None:
            raise InvalidArgument("--allow-anonymous lets everybody in; leave the token out, or the option")
        return None, False
    if file is not None and descriptor is not None:
        raise InvalidArgument("--token-file and --token-fd are both given; give one of them")
    if descriptor is not None:
        return checked_token(_first_line(descriptor).strip(), f"--token-fd {descriptor}"), False
    if file is not None:
        return token_in(Path(file)), False
    if given is not None:
        return checked_token(given.strip(), VARIABLE), False
    return secrets.token_urlsafe(32), True


def _taken_from_environment(name: str) -> str | None:
    """Remove an environment variable and return its value; erase it from ``/proc/PID/environ`` too.

    That file shows the memory in which the environment was when the process began. Removing a variable leaves
    its text there, so it is overwritten first.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype, getenv.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    value = os.environ.get(name)
    if value is not None and (address := getenv(name.encode())) is not None:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    os.environ.pop(name, None)
    return value


def _first_line(descriptor: int) -> str:
    """Read one line and no more, because the other end of a pipe may stay open."""
    line = b""
    try:
        while not line.endswith(b"\n") and len(line) < _MOST_BYTES and (byte := os.read(descriptor, 1)):
            line += byte
    except OSError as error:
        raise InvalidArgument(f"--token-fd {descriptor} cannot be read: {error.strerror}") from None
    return line.decode("ascii", "replace")
