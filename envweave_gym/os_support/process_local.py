"""State of one process, which a forked child replaces by its own: values, caches, owners and clean-ups.

A forked child has copies of its parent's objects, but none of its threads. So a copied lock may stay locked for
ever, and connections and child processes still belong to the parent. One fork handler serves the whole package.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

_T = TypeVar("_T")
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


class ProcessLocal(Generic[_T]):
    """Value of one process: after a fork the child gets a new value from ``create()``."""

    value: _T

    def __init__(self, create: Callable[[], _T]) -> None:
        self._create = create
        self.value = create()
        _values.add(self)

    def _replace(self) -> None:
        # The parent's value stays referenced: collecting it could call a finaliser that waits for a lock
        # which a thread of the parent held at the fork.
        _of_parent.append(self.value)
        self.value = self._create()


class Owner:
    """Record of the process that created it; a forked child is not the owner."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def is_here(self) -> bool:
        """Return whether this process is the owner."""
        return os.getpid() == self._pid


def process_cache(maxsize: int | None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate like ``functools.lru_cache``, but empty the cache in forked children: entries may be connections."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cache = ProcessLocal[Any](lambda: lru_cache(maxsize)(function))

        @wraps(function)
        def cached(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            return cache.value(*args, **kwargs)

        return cached

    return decorate


def in_forked_child(owner: _T, clean_up: Callable[[_T], None]) -> None:
    """Call ``clean_up(owner)`` in every forked child while ``owner`` exists; each owner has one clean-up."""
    _clean_ups[owner] = clean_up


_values: WeakSet[ProcessLocal[Any]] = WeakSet()
_clean_ups: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
_of_parent: list[Any] = []


def _after_fork() -> None:
    for value in list(_values):
        value._replace()
    for owner, clean_up in list(_clean_ups.items()):
        try:
            clean_up(owner)
        except Exception:  # noqa: BLE001 - the others are cleaned up all the same
            _log.exception("%r cannot be cleaned up in a forked process", owner)


os.register_at_fork(after_in_child=_after_fork)
