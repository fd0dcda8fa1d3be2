"""Metadata of OpenEnv observations as members of infos, in a form that vectors can merge.

Gymnasium's vectors make a typed array of each member of their rows' infos, and fail or convert silently if a member
has another type in another row. A server decides the types of its metadata, so a member is copied into the info only
as long as all observations of the environments of one name allow one array. :class:`Metadata` in ``info["metadata"]``
has all members.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from envweave_gym.os_support.process_local import ProcessLocal

_RESERVED = frozenset({
    "stream", "seq", "fault", "active", "final_obs", "final_observation", "final_info", "episode",
    "reward_missing", "metadata",
})  # fmt: skip
"""Keys of infos that mean something to this package, to Gymnasium's vectors and wrappers, or to trainers."""
_COLUMNS = {str: object, list: object, type(None): object, bool: bool, int: int, float: float}
"""The kind of array that vectors make of values of each type."""
_MAX_MEMBERS = 256
"""Limit of the metadata members of one name that are copied into infos."""


class Metadata(Mapping[str, Any]):
    """Metadata of one observation: a read-only mapping, and no ``dict``, whose members vectors would merge."""

    __slots__ = ("_members",)

    def __init__(self, members: dict[str, Any]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"Metadata({self._members!r})"

    def __reduce__(self) -> Any:
        return Metadata, (self._members,)


class MetadataKinds:
    """Kind of array for each metadata member of one environment's name; ``None`` for a member that fits none."""

    def __init__(self) -> None:
        self._kinds: dict[str, type | None] = {}
        self._lock = ProcessLocal(threading.Lock)

    def info_of(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return the info of an observation: its metadata, and copies of the members that vectors can merge."""
        if not metadata:
            return {}
        info = {
            name: value
            for name, value in metadata.items()
            if not _is_reserved(name) and self._is_stable(name, value)
        }
        info["metadata"] = Metadata(metadata)
        return info

    def _is_stable(self, name: str, value: Any) -> bool:
        kind = _COLUMNS.get(type(value)) if _fits(value) else None
        with self._lock.value:
            if name not in self._kinds and len(self._kinds) < _MAX_MEMBERS:
                self._kinds[name] = kind
            elif self._kinds.get(name) is not kind and name in self._kinds:
                self._kinds[name] = None
            return kind is not None and self._kinds.get(name) is kind


class _KindsByName:
    """Kinds that all environments of one name share, as long as there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: WeakValueDictionary[str, MetadataKinds] = WeakValueDictionary()

    def of(self, name: str) -> MetadataKinds:
        with self._lock:
            return self._by_name.setdefault(name, MetadataKinds())


_shared = ProcessLocal(_KindsByName)


def kinds_of(name: str) -> MetadataKinds:
    """Return the kinds that the environments of a name share, also if each row of a vector has a server of its own."""
    return _shared.value.of(name)


def _is_reserved(name: str) -> bool:
    return name in _RESERVED or name.startswith("_")


def _fits(value: Any) -> bool:
    """Return whether a column of an info can hold a value; integers beyond 64 bits have none."""
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63
