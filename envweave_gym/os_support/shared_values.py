"""Reference-counted values by key, shared in this process; closing the last share closes the value."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from envweave_gym.os_support.process_local import ProcessLocal


class Closeable(Protocol):
    """Value that can be closed, and works again when it is used after that."""

    def close(self) -> None:
        """Release all resources of the value."""
        ...


_V = TypeVar("_V", bound=Closeable)


class SharedValues(Generic[_V]):
    """Shared values of one kind, by key.

    A forked process inherits the values, so they must handle forks themselves.
    """

    def __init__(self) -> None:
        self._lock = ProcessLocal(threading.RLock)  # reentrant: garbage collection may end shares at any time
        self._entries: dict[Hashable, _Entry[_V]] = {}

    def take(self, key: Hashable, create: Callable[[], _V]) -> Share[_V]:
        """Return one more share of the value of ``key``; if nobody has a share, create the value with ``create()``."""
        with self._lock.value:
            entry = self._entries.get(key) or _Entry(create())
            entry.users += 1
            self._entries[key] = entry  # again: the last share may have been collected since it was found
        return Share(entry.value, self._give_back, key)

    def _give_back(self, key: Hashable) -> None:
        with self._lock.value:
            entry = self._entries[key]
            entry.users -= 1
            if entry.users:
                return
            del self._entries[key]
        entry.value.close()


class Share(Generic[_V]):
    """One user's share of a value, until it is closed or garbage-collected."""

    def __init__(self, value: _V, give_back: Callable[[Hashable], None], key: Hashable) -> None:
        self.value = value
        self._end = weakref.finalize(self, give_back, key)

    def close(self) -> None:
        """Return the share; if it is the last one, the value is closed."""
        self._end()


class _Entry(Generic[_V]):
    """A value and the number of its shares."""

    def __init__(self, value: _V) -> None:
        self.value, self.users = value, 0
