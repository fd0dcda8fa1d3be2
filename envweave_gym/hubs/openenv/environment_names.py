"""Names of OpenEnv environments: ``openenv://host:port``, ``openenv://docker/image``, ``openenv://hf/owner/name``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol
from urllib.parse import SplitResult, parse_qs, urlsplit

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.os_support.parent_process import end_with_parent
from envweave_gym.providers.base import is_elsewhere
from envweave_gym.registry.make_call import MakeCall
from envweave_gym.registry.make_registered import make_registered

ID = "envweave/OpenEnv-v0"
FORMS = "'openenv://host:port', 'openenv+https://host', 'openenv://docker/image' or 'openenv://hf/owner/name'"
_WEB = {"openenv": "http", "openenv+https": "https", "http": "http", "https": "https"}
_PART = r"[A-Za-z0-9](?:[\w.-]*\w)?"
_SPACE = re.compile(rf"({_PART})/({_PART})", re.ASCII)
_REGISTRY = "registry.hf.space"

Kind = Literal["server", "docker", "space"]


class Server(Protocol):
    """A server of OpenEnv: one that runs anyway, or one that was started for an environment."""

    @property
    def url(self) -> str:
        """The URL of the server, which may change when it is started again."""
        ...

    def ensure(self) -> None:
        """Start the server again if it has ended."""
        ...

    def direct_address(self) -> tuple[str, int] | None:
        """Return a host and port that are faster to reach than the URL, or ``None``."""
        ...

    def stop(self) -> None:
        """End the server, if it was started for the environment."""
        ...


@dataclass(frozen=True)
class RunningServer:
    """A server that runs anyway, at a URL."""

    url: str

    def ensure(self) -> None:
        """Do nothing, as somebody else runs the server."""

    def direct_address(self) -> None:
        """Return ``None``: the URL is the only address."""

    def stop(self) -> None:
        """Do nothing, as somebody else runs the server."""


@dataclass(frozen=True)
class OpenEnvName:
    """A parsed name: where the server runs, or from which image or Space it is started."""

    name: str
    kind: Kind
    where: str
    """The URL of the server, the name of the image, or the owner and name of the Space."""

    @classmethod
    def parse(cls, of: str, name: Any) -> OpenEnvName:
        """Parse a name; an ``http:`` URL is that of a server. ``of`` is the environment's name, for errors."""
        parts = _split(name)
        scheme, _, rest = name.partition("://") if isinstance(name, str) else ("", "", "")
        if parts is not None and _holds_secret(parts):
            raise InvalidArgument(
                f"{of}: the URL holds a secret; leave it out, and give token='env:NAME' or 'file:PATH'"
            )
        if parts is None or parts.query or parts.fragment:
            raise InvalidArgument(f"{of}: {_hidden(name)} names no OpenEnv server; give {FORMS}")
        if scheme == "openenv" and parts.netloc == "docker":
            image = rest.partition("/")[2]
            if not image:
                raise InvalidArgument(
                    f"{of}: {shown(name)} names no image; give 'openenv://docker/image:tag'"
                )
            return cls(name, "docker", image)
        if scheme == "openenv" and parts.netloc == "hf":
            space = rest.partition("/")[2].rstrip("/")
            if not _SPACE.fullmatch(space) or ".." in space:
                raise InvalidArgument(f"{of}: {shown(name)} names no Space; give 'openenv://hf/owner/name'")
            return cls(name, "space", space)
        return cls(name, "server", f"{_WEB[scheme]}://{parts.netloc}{parts.path.rstrip('/')}")

    def server(
        self, of: str, *, use_docker: bool, tag: str, project: str | None, options: Mapping[str, Any]
    ) -> Server:
        """Return the running server, or start one; ``of`` is the environment's name, for errors.

        ``project`` is a folder with the source of a Space, and ``options`` are those of containers.
        """
        if self.kind == "server":
            if options:
                raise InvalidArgument(
                    f"{of} takes no argument {shown(next(iter(options)))} for {self.name}, which runs already; it "
                    "takes token, call_deadline and spaces"
                )
            return RunningServer(self.where)
        end_with_parent()  # a process of a vector must not outlive it with a server of its own
        if self.kind == "docker" or use_docker:
            from envweave_gym.hubs.openenv.image_container import start_container

            image = self.where if self.kind == "docker" else image_of_space(self.where, tag)
            return start_container(of, image, options)
        from envweave_gym.hubs.openenv.space_program import OpenEnvProgram

        return OpenEnvProgram.of_space(of, self.where, tag=tag, project=project, options=options)


def image_of_space(space: str, tag: str) -> str:
    """Return the name of the container image of a Hugging Face Space."""
    return f"{_REGISTRY}/{space.replace('/', '-').lower()}:{tag}"


def make_openenv(call: MakeCall) -> Any:
    """Make ``openenv://…``: the environment, or a vector of them, that an OpenEnv server has."""
    if "url" in call.kwargs:
        raise InvalidArgument(f"make({shown(call.name)}): the name says where it is; leave url= out")
    name = OpenEnvName.parse(f"make({_hidden(call.name)})", call.name)
    kwargs = {**call.kwargs, "url": call.name}
    if name.kind == "space" and call.backend in ("docker", "venv"):
        kwargs.setdefault("use_docker", call.backend == "docker")
    elif not (call.backend == "docker" and name.kind == "docker") and (
        call.backend == "venv" or is_elsewhere(call.name, call.backend)
    ):
        raise InvalidArgument(f"make({shown(call.name)}): the name says where it runs; leave backend= out")
    return make_registered(replace(call, name=ID, backend=None, kwargs=kwargs))


def _split(name: Any) -> SplitResult | None:
    """Split a name like a URL; return ``None`` if it is none, or of another scheme."""
    try:
        parts = urlsplit(name) if isinstance(name, str) and name.isprintable() else None
        if parts is None or parts.scheme not in _WEB or not parts.hostname or parts.port == 0:
            return None
        parts.hostname.encode("idna")
    except ValueError:  # brackets, a port or a host name that cannot be
        return None
    return parts


def _holds_secret(parts: SplitResult) -> bool:
    """Return whether a URL has a user name, a password, or the ``?token=`` of the link that our server prints."""
    return bool(parts.username or parts.password or "token" in parse_qs(parts.query, keep_blank_values=True))


def _hidden(name: Any) -> str:
    """Return a name for errors, without what may be a secret in a URL."""
    return shown(re.sub(r"(?<=://)[^/?#]*@|[?#].*", "…", name) if isinstance(name, str) else name)
