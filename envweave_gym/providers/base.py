"""The table of providers: the code behind ``backend="docker"`` and the like, ours and that of plug-ins.

A provider starts replicas, which are servers of environments. An installed package adds one by an entry point
whose name is the backend's and whose value is a subclass of :class:`Provider`::

    # pyproject.toml
    [project.entry-points."envweave_gym.providers"]
    slurm = "my_package.slurm:SlurmProvider"
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.plug_ins import PlugInTable
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.os_support.process_local import ProcessLocal
from envweave_gym.remote.transports import CONNECTORS, UNFORKABLE

if TYPE_CHECKING:
    from envweave_gym.providers.replica import Start

PROVIDERS = {
    "subprocess": "envweave_gym.providers.subprocess:SubprocessProvider",
    "docker": "envweave_gym.providers.docker:DockerProvider",
    "kubernetes": "envweave_gym.providers.kubernetes.pod:KubernetesProvider",
    "ray": "envweave_gym.providers.ray.ray_replica:RayProvider",
}
"""The providers of this package by the names of their backends; those of plug-ins come by entry points."""
_ALIASES = {"docker_http": "docker"}
_URL = re.compile(rf"({'|'.join(map(re.escape, CONNECTORS))})://.")


class Leftovers(NamedTuple):
    """The result of a sweep."""

    removed: dict[str, list[str]]
    """Names of what was removed, by kind, as in ``{"containers": [...]}``."""
    failed: list[str]
    """Sentences about what could not be looked for, or removed."""


@runtime_checkable
class Provider(Protocol):
    """Starts replicas of one backend.

    In its methods ``name`` is what errors call the environment or the fleet that asks, and ``image`` is the
    default of its container image. ``options`` are the user's arguments; a provider removes its own.
    """

    name: str
    """The name of the backend."""
    noun: str = "replicas"
    """The plural noun for its replicas in errors."""
    uses_images: bool = False
    """Whether its servers run in container images, and it takes ``image=``."""
    mounts_data: bool = False
    """Whether ``data=True`` lets its servers read the data sets of this machine."""
    shares_modules: bool = False
    """Whether its servers can import the modules of this process, which register IDs."""
    same_packages: bool = False
    """Whether its servers have the packages of this process and no others."""
    survives_fork: bool = True
    """Whether a process that has used its servers may fork, and go on using them in the child."""
    place_options: tuple[str, ...] = ()
    """The options that say where its replicas are, without which they are not found later."""

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> Start:
        """A function that starts a replica; two with the same ``repr`` start replicas that can be shared."""
        ...

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """The URLs of as many shared replicas as ``replicas=`` says; ``warm=`` more are kept ready."""
        from envweave_gym.providers.options import numbers_in
        from envweave_gym.providers.pool import shared_urls

        count, warm = numbers_in(name, options, self.noun)
        return shared_urls(self.start(name, image, options), count, warm)

    def sweep(self, places: Iterable[Mapping[str, str]] = ()) -> Leftovers:
        """Remove what killed owners left behind, at these places too, each given by its ``place_options``."""
        return Leftovers({}, [])

    def ending(self, owner: str, place: Mapping[str, str]) -> list[str]:
        """The names of replicas of an owner that are still being removed; ``owner`` is as in its labels."""
        return []


_table = PlugInTable("envweave_gym.providers", PROVIDERS, Provider)


def provider_of(backend: Any) -> Provider | None:
    """The provider that ``backend`` names, which is loaded; ``None`` if it names none, as a URL does."""
    if not isinstance(backend, str) or "://" in backend or backend == "inproc":
        return None
    return _table.find(_ALIASES.get(backend, backend))


def survives_fork(backend: Any) -> bool:
    """Whether a process that uses a backend, or a server's URL, may fork and go on using it in the child."""
    if (provider := provider_of(backend)) is not None:
        return provider.survives_fork
    return str(backend).partition("://")[0] not in UNFORKABLE


def provider_names() -> list[str]:
    """The names of all backends that start servers."""
    return _table.names()


def urls_of(
    name: str, backend: Any, options: dict[str, Any], image: str | None = None, data: bool = False
) -> list[str]:
    """The URLs of the servers that ``backend`` means, which are started if need be; none for this process.

    ``options`` loses those of the provider. ``data`` says that the environment reads data of this machine. A
    worker process of a vector ends with its parent from now on, and so do its servers.
    """
    if backend is None or backend == "inproc":
        return []
    end_with_parent()
    if (provider := provider_of(backend)) is not None:
        if data and provider.mounts_data and options.get("dataset") != "synthetic":
            options.setdefault("data", True)
        return provider.urls(name, image, options)
    urls = backend if isinstance(backend, list) else [backend]
    if urls and all(isinstance(url, str) and _URL.match(url) for url in urls):
        return list(urls)
    there_are = ", ".join(map(repr, ("inproc", *provider_names(), "http://host:port")))
    raise InvalidArgument(f"{name}: backend={shown(backend)} is unknown; there are {there_are}")


_blocks = ProcessLocal(threading.local)


@contextmanager
def release_unused() -> Generator[None]:
    """Return replicas that were taken in the block, and that no environment uses at its end, to their pools.

    So none is left over if fewer were needed, or no environment could be made. Of nested blocks the outermost
    one does it.
    """
    block = _blocks.value  # a process that is forked in the block never reaches its end
    if getattr(block, "releases", None) is not None:
        yield
        return
    block.releases = releases = list[Callable[[], None]]()
    try:
        yield
    finally:
        block.releases = None
        for release in releases:
            release()


def at_release(release: Callable[[], None]) -> bool:
    """Call ``release`` when the :func:`release_unused` block of this thread ends; whether there is one."""
    releases: list[Callable[[], None]] | None = getattr(_blocks.value, "releases", None)
    if releases is not None:
        releases.append(release)
    return releases is not None
