"""Settings of a server: access, limits, leases and isolation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast, get_args

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.sizes import bytes_of
from envweave_gym.os_support.token_file import checked_token
from envweave_gym.wire.messages import LARGEST_REPLY

NEEDS_PROCESSES = "limits the process of a session, and with threads there is none;"
_WORKER_MEMORY = 4 << 30
_OF_PROCESSES: dict[str, tuple[Any, ...]] = {"worker_memory": (None, _WORKER_MEMORY), "call_timeout": (None,)}
"""Values of settings for worker processes that are allowed with threads, because they change nothing."""
Isolation = Literal["thread", "process"]
Protocol = Literal["openenv", "mcp"]
_Rule = Callable[[Any], str | None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of :func:`envweave_gym_server.create_app`; the defaults are for a server on loopback."""

    token: str | None = None
    """Access token that clients must send as ``Authorization: Bearer …``; ``None`` lets everybody in."""
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")
    """Names in ``Host`` headers that are answered; ``"*"`` answers all.

    This keeps out a web page that points a name of its own at this machine. Other web pages are kept out by the
    check of ``Origin``.
    """
    protocols: tuple[str, ...] = ()
    """Protocols of others that are served beside our own: ``"openenv"``, ``"mcp"``."""
    default: str = ""
    """ID that OpenEnv's clients play at the root of a server with several; empty if there is none."""
    max_sessions: int = 1024
    """Limit of open sessions; creating another is refused with 503."""
    max_rows: int = 65536
    """Limit of environments in one vector."""
    max_environments: int = 1 << 17
    """Limit of environments in all sessions together, counting each row of a vector; beyond it 503.

    A row of a small environment takes about 8 KB (measured on Echo, Counter and CartPole).
    """
    max_descriptions: int = 8
    """Limit of environments that are being made at the same time only to be described."""
    idle_timeout: float = 300.0
    """Seconds that a session is retained while it has no connection and no running call."""
    client_timeout: float = 60.0
    """Seconds after which the connection of a client that stalls is closed; the session stays.

    A client stalls if it reads nothing, sends no more of a request it has begun, or its machine does not
    answer.
    """
    largest_frame: int = 64 << 20
    """Limit of bytes in a frame or a body, from 64k to 1g; text like ``"64m"`` is accepted too.

    With less a description or a short text would not fit; with more no client would take the reply.
    """
    deepest: int = 32
    """Limit of nesting levels in the arguments of an environment."""
    isolation: Isolation = "thread"
    """Whether sessions share the server's process, or each has a worker process that may crash alone."""
    worker_memory: int | None = _WORKER_MEMORY
    """Limit of address space of a worker process, in bytes; ``None`` for no limit.

    Memory that is reserved and never used counts too, so environments that compute on a GPU need far more. Any
    other value than ``None`` and the default needs ``isolation="process"``.
    """
    call_timeout: float | None = None
    """Seconds after which a worker process that has not answered is killed; ``None`` waits forever.

    It needs ``isolation="process"``: a thread cannot be ended from outside.
    """
    log_size: int = 32 << 10
    """Limit of bytes of the last replies that a session retains for listeners; the oldest are dropped.

    Before a session has its first listener the limit is an eighth of this.
    """
    max_listeners: int = 64
    """Limit of listeners (clients of event streams) at the same time."""
    drain: float = 30.0
    """Seconds that running calls may still take once the server stops."""

    def __post_init__(self) -> None:
        if self.token is not None:
            checked_token(self.token, "token=")
        for name in _RULES:
            value = getattr(self, name)
            check_setting(name, value, f"{name}={shown(value)}")
            if self.isolation != "process" and name in _OF_PROCESSES and value not in _OF_PROCESSES[name]:
                raise InvalidArgument(f"{name}={shown(value)} {NEEDS_PROCESSES} give isolation='process' too")
            if _RULES[name] in _SIZES and value is not None:
                object.__setattr__(self, name, bytes_of(value))


LARGEST_FRAME_OF_OWNER = 1 << 30
"""Limit of a frame in bytes, for a server whose only client is the process that started it."""


def settings_of_owner() -> Settings:
    """Return the settings of a server whose only client is its owner process: limits far above normal use."""
    limits: dict[str, Any] = {"max_sessions": 4096, "max_rows": 1 << 20, "max_environments": 1 << 24}
    return Settings(idle_timeout=60.0, log_size=0, largest_frame=LARGEST_FRAME_OF_OWNER, **limits)


def check_setting(name: str, value: Any, written: str) -> None:
    """Raise ``InvalidArgument`` if the setting ``name`` cannot have this value.

    ``written`` is the setting as the caller wrote it, for the message.
    """
    problem = _RULES[name](value)
    if problem:
        raise InvalidArgument(f"{written} {problem}")


def _count(value: Any, least: int = 1) -> str | None:
    if type(value) is not int:
        return f"is no integer; give one from {least} on"
    if value >= least:
        return None
    return "is not more than 0" if least else "is less than 0"


def _size(value: Any, least: int = 1) -> str | None:
    size = bytes_of(value)
    if size is None and not (type(value) is int and value < 0):
        return "is no size; give bytes, or text like '512m' or '2g'"
    return _count(-1 if size is None else size, least)


_FRAME_LIMIT_BYTES = 1 << 16, LARGEST_REPLY


def _frame(value: Any) -> str | None:
    size, (least, most) = bytes_of(value), _FRAME_LIMIT_BYTES
    if size is None and type(value) is not int:
        return _size(value)
    if size is not None and least <= size <= most:
        return None
    return f"is outside the allowed range; give 64k to 1g ({least} to {most} bytes)"


def _seconds(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is no number of seconds"
    if not value > 0:
        return "is not more than 0"
    return None if value <= threading.TIMEOUT_MAX else "is longer than this system can wait"


def _one_of(value: Any) -> str | None:
    known = get_args(Isolation)
    return None if value in known else f"is unknown; there are {' and '.join(map(repr, known))}"


def _names(value: Any) -> str | None:
    if isinstance(value, tuple | list) and all(isinstance(name, str) for name in cast("list[Any]", value)):
        return None
    return "are no names; give a tuple of them, as in ('localhost',)"


def _protocols(value: Any) -> str | None:
    known = get_args(Protocol)
    if isinstance(value, tuple | list) and all(name in known for name in cast("list[Any]", value)):
        return None
    return f"are unknown; there are {' and '.join(map(repr, known))}"


def _id(value: Any) -> str | None:
    return None if isinstance(value, str) else "is no ID; give that of an environment that is served"


def _or_none(rule: _Rule) -> _Rule:
    return lambda value: None if value is None else rule(value)


_LIMIT, _LOG = _or_none(_size), partial(_size, least=0)
_SIZES = (_frame, _LIMIT, _LOG)
_RULES: dict[str, _Rule] = {
    "hosts": _names,
    "protocols": _protocols,
    "default": _id,
    "max_sessions": _count,
    "max_rows": _count,
    "max_environments": _count,
    "max_descriptions": _count,
    "idle_timeout": _seconds,
    "client_timeout": _seconds,
    "largest_frame": _frame,
    "deepest": partial(_count, least=0),
    "isolation": _one_of,
    "worker_memory": _LIMIT,
    "call_timeout": _or_none(_seconds),
    "log_size": _LOG,
    "max_listeners": partial(_count, least=0),
    "drain": _seconds,
}
"""For each setting a function that returns what is wrong with a value; ``None`` if nothing is."""
