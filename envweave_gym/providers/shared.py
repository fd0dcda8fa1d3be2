"""The replicas that this process has started for its environments, shared by all that ask for the same.

They are started when the first environment asks, and stopped when the last one that used them is closed, or
with the process. A process that was forked starts its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.providers.pool import Pool
from envweave_gym.providers.replica import Start


class _Pools(dict[str, Pool]):
    """The pools of this process, by how their replicas are started."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_pools = ProcessLocal(_Pools)


class ReplicaUrl(str):
    """The URL of a replica, which is in pickles what ``again`` gives to whoever reads them."""

    again: Callable[[], str]

    @classmethod
    def of(cls, url: str, again: Callable[[], str]) -> ReplicaUrl:
        """A URL that travels so."""
        found = cls(url)
        found.again = again
        return found

    def __reduce__(self) -> Any:
        return self.again, ()


def shared_urls(
    start: Start, count: int, warm: int | None = None, again: Callable[[], str] | None = None
) -> list[str]:
    """The URLs of so many replicas that are the same; those that are missing start at the same time.

    ``warm`` more are kept ready from now on. In pickles each is what ``again`` gives to whoever reads them,
    by default the URL of one of his own.
    """
    pool = pool_of(start)
    replicas = pool.take(count)
    if warm is not None:
        pool.keep_ready(warm)
    again = again or partial(_again, start)
    return [ReplicaUrl.of(replica.url, again) for replica in replicas]


def _again(start: Start) -> str:
    return shared_urls(start, 1)[0]


def pool_of(start: Start) -> Pool:
    """The replicas of one kind: those are the same whose ``start`` is written in the same way."""
    pools, key = _pools.value, repr(start)
    with pools.lock:
        if key not in pools:
            pools[key] = Pool(start)
        return pools[key]
