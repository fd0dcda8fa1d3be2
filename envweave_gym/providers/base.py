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
    "venv": "envweave_gym.providers.venv:VenvProvider",
}
"""The providers of this package, by backend name; installed packages add others by entry points."""
_ALIASES = {"docker_http": "docker"}
_URL = re.compile(rf"({'|'.join(map(re.escape, CONNECTORS))})://.")


class Leftovers(NamedTuple):
    """Result of :meth:`Provider.sweep`, which removes the replicas of killed owner processes."""

    removed: dict[str, list[str]]
    """Names of the removed objects by kind, as in ``{"containers": [...]}``."""
    failed: list[str]
    """Error messages: what could not be searched or removed, and why."""


@runtime_checkable
class Provider(Protocol):
    """Base class of providers, which start servers (replicas) for one ``backend=``, such as Docker containers.

    In its methods ``name`` is the environment's ID or the fleet's name, for error messages, and ``image`` the
    default container image. ``options`` are the user's keyword arguments; a provider removes those that it
    consumes.
    """

    name: str
    """Name of the backend, as in ``backend="docker"``."""
    noun: str = "replicas"
    """Plural noun for the replicas in error messages, such as ``"containers"``."""
    uses_images: bool = False
    """Whether the servers run in container images, so that ``image=`` is an option."""
    mounts_data: bool = False
    """Whether ``data=True`` mounts the data sets of this machine into the servers."""
    shares_modules: bool = False
    """Whether the servers can import the modules of this process that register IDs."""
    same_packages: bool = False
    """Whether the servers have exactly the installed packages of this process."""
    maker: str = ""
    """Path (``module:function``) of the function that makes environments of other packages without any server."""
    survives_fork: bool = True
    """Whether a process that has used the servers may fork and use them in the child too."""
    place_options: tuple[str, ...] = ()
    """Names of the options that locate the replicas, such as ``namespace``; :meth:`sweep` needs their values."""

    def start(self, name: str, image: str | None, options: dict[str, Any]) -> Start:
        """Return a function that starts a replica; replicas whose functions have equal ``repr`` are shared."""
        ...

    def urls(self, name: str, image: str | None, options: dict[str, Any]) -> list[str]:
        """Return the URLs of ``replicas=`` shared replicas, and keep ``warm=`` further ones ready."""
        from envweave_gym.providers.options import numbers_in
        from envweave_gym.providers.pool import shared_urls

        count, warm = numbers_in(name, options, self.noun)
        return shared_urls(self.start(name, image, options), count, warm)

    def sweep(self, places: Iterable[Mapping[str, str]] = ()) -> Leftovers:
        """Remove the replicas of owner processes that were killed.

        They are searched at the default location and at ``places``, such as Kubernetes contexts and namespaces. Each
        place is a mapping from the names in ``place_options`` to values.
        """
        return Leftovers({}, [])

    def ending(self, owner: str, place: Mapping[str, str]) -> list[str]:
        """Return the names of an owner's replicas that are still being removed.

        ``owner`` is the value of their owner label; ``place`` maps the names in ``place_options`` to values.
        """
        return []


_table = PlugInTable("envweave_gym.providers", PROVIDERS, Provider)


def provider_of(backend: Any) -> Provider | None:
    """Load and return the provider named ``backend``; return ``None`` for ``"inproc"``, a URL or an unknown name."""
    if not isinstance(backend, str) or "://" in backend or backend == "inproc":
        return None
    return _table.find(_ALIASES.get(backend, backend))


def survives_fork(backend: Any) -> bool:
    """Return whether a process that uses ``backend`` (a name or a URL) may fork and use it in the child too."""
    if (provider := provider_of(backend)) is not None:
        return provider.survives_fork
    return str(backend).partition("://")[0] not in UNFORKABLE


def provider_names() -> list[str]:
    """Return the names of all backends that start servers; ``"inproc"`` is none of them."""
    return _table.names()


def urls_of(
    name: str, backend: Any, options: dict[str, Any], image: str | None = None, data: bool = False
) -> list[str]:
    """Return the server URLs that ``backend`` stands for, and start the servers if need be.

    The list is empty for environments in this process (``None``, ``"inproc"``). Raise ``InvalidArgument`` if
    ``backend`` is neither a known name nor URLs.

    ``name`` is for error messages, and the provider removes its own entries from ``options``. ``image`` and
    ``data`` belong to the environment: its container image, and whether it reads data sets of this machine.

    A worker process of a vector ends with its parent from now on, and so do its servers.
    """
    if not is_elsewhere(name, backend):
        return []
    end_with_parent()
    if (provider := provider_of(backend)) is not None:
        if data and provider.mounts_data and options.get("dataset") != "synthetic":
            options.setdefault("data", True)
        return provider.urls(name, image, options)
    return list(_addresses(backend))


def is_elsewhere(name: str, backend: Any) -> bool:
    """Whether ``backend`` means servers, none of which is started; refuse one that is unknown."""
    if backend is None or backend == "inproc":
        return False
    if provider_of(backend) is not None:
        return True
    urls = _addresses(backend)
    if urls and all(isinstance(url, str) and _URL.match(url) for url in urls):
        return True
    there_are = ", ".join(map(repr, ("inproc", *provider_names(), "http://host:port")))
    raise InvalidArgument(f"{name}: backend={shown(backend)} is unknown; there are {there_are}")


def _addresses(backend: Any) -> list[Any]:
    return backend if isinstance(backend, list) else [backend]


_blocks = ProcessLocal(threading.local)


@contextmanager
def release_unused() -> Generator[None]:
    """At the end of the block, return replicas that were taken in it to their pools if no environment uses them.

    A replica is unused if more were taken than needed, or if no environment could be made. If blocks are nested,
    only the end of the outermost one returns replicas.
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
    """Call ``release`` at the end of this thread's :func:`release_unused` block; return ``False`` if there is none."""
    releases: list[Callable[[], None]] | None = getattr(_blocks.value, "releases", None)
    if releases is not None:
        releases.append(release)
    return releases is not None
