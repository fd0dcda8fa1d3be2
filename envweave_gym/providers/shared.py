"""The containers that this process has started for its environments, shared by all that ask for the same.

They are started when the first environment asks, and stopped when the last one that used them is closed, or
with the process. A process that was forked starts its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any

from envweave_gym.containers.box import Box
from envweave_gym.faults import InvalidArgument, shown
from envweave_gym.providers.docker import DockerReplica

_kept: dict[Any, list[DockerReplica]] = {}
_lock = threading.Lock()
Start = Callable[[], DockerReplica]
OPTIONS = ("image", "replicas", *(field.name for field in fields(Box)))
"""What ``make`` takes beside ``backend="docker"``."""
MOST = 256


class SharedUrl(str):
    """The URL of a shared replica, which is in pickles that of one that whoever reads them starts."""

    again: Callable[[], str]

    def __reduce__(self) -> Any:
        return self.again, ()


def shared_urls(key: Any, count: int, start: Start, again: Callable[[], str]) -> list[str]:
    """The URLs of so many replicas that are the same; those that are missing start at the same time."""
    with _lock:
        kept = _kept.setdefault(key, [])
        missing = count - len(kept)
        if missing > 0:
            with ThreadPoolExecutor(missing) as pool:
                started = [pool.submit(start) for _ in range(missing)]
            kept.extend(_all_or_none(started))
            for replica in kept[-missing:]:
                replica.upkeep.unused = replica.rest
        return [_url_of(replica, again) for replica in kept[:count]]


def docker_urls(name: str, image: str | None, kwargs: dict[str, Any]) -> list[str]:
    """The URLs of containers of an image, whose options are taken out of ``kwargs``."""
    options = {key: kwargs.pop(key) for key in OPTIONS if key in kwargs}
    image, count = options.pop("image", image), options.pop("replicas", 1)
    if not isinstance(image, str):
        given = "is in no image that is known" if image is None else f"has image={shown(image)}"
        raise InvalidArgument(f"{name} {given}; name the image whose server has it with image='…'")
    if type(count) is not int or not 1 <= count <= MOST:
        raise InvalidArgument(f"{name}: replicas={shown(count)} is no number of containers from 1 to {MOST}")
    try:
        box = Box(**options)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None
    return _docker_urls(image, box, count)


def _docker_urls(image: str, box: Box, count: int = 1) -> list[str]:
    start, again = partial(DockerReplica, image, box), partial(_docker_url, image, box)
    return shared_urls(("docker", image, repr(box)), count, start, again)


def _docker_url(image: str, box: Box) -> str:
    return _docker_urls(image, box)[0]


def _all_or_none(started: list[Any]) -> list[DockerReplica]:
    """The replicas that have started; where one has not, none is left."""
    errors = [error for one in started if (error := one.exception()) is not None]
    if errors:
        for one in started:
            if one.exception() is None:
                one.result().stop()
        raise errors[0]
    return [one.result() for one in started]


def _url_of(replica: DockerReplica, again: Callable[[], str]) -> SharedUrl:
    url = SharedUrl(replica.url)
    url.again = again
    return url


os.register_at_fork(after_in_child=_kept.clear)
