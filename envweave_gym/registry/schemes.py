"""Table of URL-like names ``scheme://…``: a function for each scheme makes the environment.

An installed package adds a scheme by an entry point that has the scheme's name. Its value is a :class:`Scheme`::

    # pyproject.toml
    [project.entry-points."envweave_gym.schemes"]
    hub = "my_package.hub:make_from_hub"
"""

from __future__ import annotations

import re
from typing import Any, Protocol, runtime_checkable

from envweave_gym.core.faults import InvalidArgument, UnknownEnvironment, shown
from envweave_gym.core.plug_ins import PlugInTable
from envweave_gym.providers.base import urls_of
from envweave_gym.registry.foreign import on_servers, wrapped
from envweave_gym.registry.make_call import MakeCall
from envweave_gym.registry.names import factories, unknown
from envweave_gym.remote.address import is_server_url, url_like

SCHEMES = {
    "local": f"{__name__}:make_local",
    "http": f"{__name__}:make_on_server",
    "https": f"{__name__}:make_on_server",
    "http+unix": f"{__name__}:make_on_server",
    "unix": f"{__name__}:make_on_server",
    "ray+actor": f"{__name__}:make_on_server",
    "docker": f"{__name__}:make_in_docker",
    "openenv": "envweave_gym.hubs.openenv.environment_names:make_openenv",
    "openenv+https": "envweave_gym.hubs.openenv.environment_names:make_openenv",
    "prime": "envweave_gym.hubs.prime.hub_packages:make_prime",
}
"""The built-in schemes, with the paths of their functions."""
_NAME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*)://.*", re.DOTALL)


@runtime_checkable
class Scheme(Protocol):
    """Function that makes the environment, vector or game for a name such as ``docker://…``."""

    def __call__(self, call: MakeCall) -> Any:  # noqa: D102
        ...


_table = PlugInTable("envweave_gym.schemes", SCHEMES, Scheme)


def scheme_of(name: str) -> Scheme | None:
    """Return the function that makes the environment for a name ``scheme://…``; ``None`` if it has no scheme.

    Raise ``UnknownEnvironment`` if no function is registered for the scheme.
    """
    if (match := _NAME.fullmatch(name)) is None:
        return None
    scheme = match["scheme"].lower()
    found = _table.find(scheme)
    if found is None:
        known = ", ".join(f"{one}://" for one in _table.names())
        raise UnknownEnvironment(f"make({shown(name)}): there is no scheme {scheme}://; there are {known}")
    return found


def make_local(call: MakeCall) -> Any:
    """Make ``local://name`` with the factory registered in this process under that name."""
    if call.name not in factories:
        raise unknown(call.name)
    return wrapped(call.name, factories[call.name], call)


def make_on_server(call: MakeCall) -> Any:
    """Make ``http://host:port#ID`` and other URLs of servers: the ID there, or the server's only one."""
    url, _, env_id = call.name.partition("#")
    if not url.partition("://")[2].strip("/"):
        raise InvalidArgument(f"make({shown(call.name)}) names no server; give one: http://host:port#ID")
    if not is_server_url(url):
        raise InvalidArgument(f"make({shown(call.name)}): {shown(url)} is not a URL like {url_like(url)}")
    return on_servers(env_id, urls_of(call.name, call.backend, call.kwargs) or [url], call)


def make_in_docker(call: MakeCall) -> Any:
    """Make ``docker://image:tag#ID``: the ID in a container of the image."""
    name = call.name
    image, _, env_id = name.partition("://")[2].partition("#")
    if not image:
        raise InvalidArgument(f"make({shown(name)}) names no image; give one: docker://envweave-core#ID")
    if "image" in call.kwargs:
        raise InvalidArgument(f"make({shown(name)}): the name says which image; leave image= out")
    if call.backend not in (None, "docker"):
        raise InvalidArgument(f"make({shown(name)}): the name says where it runs; leave backend= out")
    return on_servers(env_id, urls_of(name, "docker", call.kwargs, image), call)
