"""The servers that this process keeps up itself: started when needed, ended when nobody uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
    users: WeakSet[Any] = field(default_factory=WeakSet[Any])


_kept: dict[str, Upkeep] = {}


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
    if (upkeep := _kept.get(url)) is not None:
        upkeep.users.add(user)


def leave(url: str, user: Any) -> None:
    """``user`` does not use the server any more."""
    upkeep = _kept.get(url)
    if upkeep is not None and user in upkeep.users:
        upkeep.users.discard(user)
        if not upkeep.users and upkeep.unused is not None:
            upkeep.unused()


def place_of(url: str) -> tuple[str, int] | None:
    """A shorter way to the server than its URL, where this process knows one."""
    upkeep = _kept.get(url)
    return None if upkeep is None or upkeep.place is None else upkeep.place()
