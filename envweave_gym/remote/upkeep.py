"""The servers that this process keeps up itself: started when needed, ended when nobody uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet


@dataclass
class Upkeep:
    """How a server is kept up."""

    ensure: Callable[[], None]
    """Starts it unless it runs."""
    unused: Callable[[], None] | None = None
    """Called when the last environment that used it is closed."""
    place: Callable[[], tuple[str, int] | None] | None = None
    """A shorter way to it than its URL, where there is one."""


_kept: dict[str, Upkeep] = {}
_users: dict[str, WeakSet[Any]] = {}


def keep_up(url: str, upkeep: Upkeep | None) -> None:
    """Keep the server behind this URL up from now on, or no more."""
    if upkeep is None:
        _kept.pop(url, None)
    else:
        _kept[url] = upkeep


def ensure(url: str) -> None:
    """Start the server where this process keeps it up."""
    if (upkeep := _kept.get(url)) is not None:
        upkeep.ensure()


def join(url: str, user: Any) -> None:
    """``user`` will use the server, until it leaves or is forgotten."""
    _users.setdefault(url, WeakSet()).add(user)


def leave(url: str, user: Any) -> None:
    """``user`` does not use the server any more."""
    users = _users.get(url)
    if users is None or user not in users:
        return
    users.discard(user)
    upkeep = _kept.get(url)
    if not users and upkeep is not None and upkeep.unused is not None:
        upkeep.unused()


def users_of(url: str) -> int:
    """How many of this process use the server."""
    return len(_users.get(url, ()))


def place_of(url: str) -> tuple[str, int] | None:
    """A shorter way to the server than its URL, where this process knows one."""
    upkeep = _kept.get(url)
    return None if upkeep is None or upkeep.place is None else upkeep.place()
