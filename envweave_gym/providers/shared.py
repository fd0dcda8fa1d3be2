"""The replicas that this process has started for its environments, shared by all that ask for the same.

They are started when the first environment asks, and stopped when the last one that used them is closed, or
with the process. A process that was forked starts its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from envweave_gym.faults import InvalidArgument, shown
from envweave_gym.providers.pool import Pool
from envweave_gym.providers.replica import Replica, Start

MOST = 256
_pools: dict[Any, Pool] = {}
_lock = threading.Lock()


class SharedUrl(str):
    """The URL of a shared replica, which is in pickles that of one that whoever reads them starts."""

    again: Callable[[], str]

    def __reduce__(self) -> Any:
        return self.again, ()


def shared_urls(
    key: Any, count: int, start: Start, again: Callable[[], str], warm: int | None = None
) -> list[str]:
    """The URLs of so many replicas that are the same; those that are missing start at the same time.

    ``warm`` more are kept ready from now on, and in pickles the URLs are what ``again`` gives.
    """
    pool = pool_of(key, start)
    replicas = pool.take(count)
    if warm is not None:
        pool.keep_ready(warm)
    return [_url_of(replica, again) for replica in replicas]


def pool_of(key: Any, start: Start) -> Pool:
    """The replicas of one kind."""
    with _lock:
        if key not in _pools:
            _pools[key] = Pool(start)
        return _pools[key]


def numbers_in(name: str, kwargs: dict[str, Any], noun: str = "replicas") -> tuple[int, int | None]:
    """How many replicas are wanted, and how many more that are ready; taken out of ``kwargs``."""
    count, warm = kwargs.pop("replicas", 1), kwargs.pop("warm", None)
    check_number(name, "replicas", count, noun)
    if warm is not None:
        check_number(name, "warm", warm, noun, least=0)
    return count, warm


def check_number(name: str, argument: str, value: Any, noun: str = "replicas", *, least: int = 1) -> None:
    """Refuse what is no number of replicas."""
    if type(value) is not int or not least <= value <= MOST:
        raise InvalidArgument(
            f"{name}: {argument}={shown(value)} is no number of {noun} from {least} to {MOST}"
        )


def _url_of(replica: Replica, again: Callable[[], str]) -> SharedUrl:
    url = SharedUrl(replica.url)
    url.again = again
    return url


def _forget_all() -> None:
    """A process that was forked has no pool, and a lock that nobody holds."""
    global _lock
    _pools.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_all)
