"""Where servers come from: each provider starts one and tells its address.

A provider is a module here with two functions that take the same. Both take what says how its servers are
started out of ``kwargs``; errors call whoever asks ``name``, and ``image`` is what they are in by default::

    x_urls(name, image, kwargs)   the URLs of servers that are shared by all who ask for the same
    x_start(name, image, kwargs)  what starts a server of one's own: start(token=None, ids=()) -> Replica

Those that are shared are found by ``repr(start)``, so that who asks for the same gets the same.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.remote.address import SCHEMES

if TYPE_CHECKING:
    from envweave_gym.providers.replica import Start

PROVIDERS = ("subprocess", "docker", "kubernetes", "ray")
BACKENDS = ("inproc", *PROVIDERS, "http://host:port")
_ALIASES = {"docker_http": "docker"}
_URL = re.compile(rf"({'|'.join(map(re.escape, SCHEMES))})://.")


def urls_of(
    name: str, backend: Any, kwargs: dict[str, Any], image: str | None = None, data: bool = False
) -> list[str]:
    """The servers that ``backend`` means, none where it is this process; those to be started are.

    What says how they are started is taken out of ``kwargs``; ``image`` is the one it is in by default, and
    ``data`` tells that it needs the data of this machine there, unless its own are generated. A worker
    process of a vector ends with its owner from now on, and so do its servers.
    """
    if backend is None or backend == "inproc":
        return []
    end_with_parent()
    if (provider := provider_named(backend)) is not None:
        if data and provider == "docker" and kwargs.get("dataset") != "synthetic":
            kwargs.setdefault("data", True)
        return of_provider(provider, "urls")(name, image, kwargs)
    if isinstance(backend, str) and _URL.match(backend):
        return [backend]
    if isinstance(backend, list) and backend and all(isinstance(u, str) and _URL.match(u) for u in backend):
        return list(backend)
    there_are = ", ".join(map(repr, BACKENDS))
    raise InvalidArgument(f"{name}: backend={shown(backend)} is unknown; there are {there_are}")


_blocks = ProcessLocal(threading.local)


@contextmanager
def settled() -> Generator[None]:
    """Servers that are taken in this block and that nobody has come to use at its end go back to their pools.

    So none is left by who asked for more than were needed, or could not make an environment of them. Of
    blocks within each other the outermost does that.
    """
    block = _blocks.value  # a process that is forked in the block never comes to its end
    if getattr(block, "ends", None) is not None:
        yield
        return
    block.ends = ends = list[Callable[[], None]]()
    try:
        yield
    finally:
        block.ends = None
        for end in ends:
            end()


def at_end_of_block(end: Callable[[], None]) -> bool:
    """Call ``end`` when the :func:`settled` block of this thread ends, if there is one."""
    ends: list[Callable[[], None]] | None = getattr(_blocks.value, "ends", None)
    if ends is not None:
        ends.append(end)
    return ends is not None


def start_of(name: str, provider: str, kwargs: dict[str, Any], image: str | None = None) -> Start:
    """What starts one server of a provider; its options are taken out of ``kwargs``."""
    return of_provider(provider, "start")(name, image, kwargs)


def provider_named(backend: Any) -> str | None:
    """The provider that ``backend`` names, if it names one."""
    if not isinstance(backend, str):
        return None
    named = _ALIASES.get(backend, backend)
    return named if named in PROVIDERS else None


def of_provider(provider: str, what: str) -> Any:
    """A function of the module of a provider, which is imported when somebody asks for it."""
    return getattr(importlib.import_module(f"envweave_gym.providers.{provider}"), f"{provider}_{what}")
