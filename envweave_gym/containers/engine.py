"""Client of the container engine, checks of images, and one-sentence messages for the engine's errors."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.faults import InvalidArgument, NotAvailable, need, shown
from envweave_gym.core.loopback import is_loopback
from envweave_gym.os_support.process_local import process_cache

SOCKET = "/var/run/docker.sock"
"""Path of the engine's socket, on this machine and in containers that may use the engine."""
CORE_IMAGE = "envweave-core"
_UNIX = "unix://"
_CALL_TIMEOUT_S = 60
_PORT_TAKEN = re.compile(r"(?:listen tcp4?|Bind for) ([\d.]+:\d+).*(?:already in use|already allocated)")
"""Pattern of engine messages about a port that is not free; its group is the address."""
_IMAGE_NAME = re.compile(r"[a-z0-9][\w.:/@-]*", re.ASCII | re.IGNORECASE)


def engine() -> Any:
    """Return a ``docker.DockerClient`` for ``DOCKER_HOST``, or for the engine of this machine if that is not set."""
    return _client(_host())


def engine_socket() -> Path:
    """Return the path of the engine's socket on this machine, for mounting it in containers."""
    host = _host()
    path = Path(host.removeprefix(_UNIX))
    advice = f"set it to the socket of an engine of this machine, like {_UNIX}{SOCKET}"
    if not host.startswith(_UNIX):
        raise NotAvailable(
            f"docker_sock=True: DOCKER_HOST={host} is no socket that could be mounted; {advice}"
        )
    if not path.is_socket():
        raise NotAvailable(f"docker_sock=True: there is no socket at {path}; {advice}")
    return path


def _host() -> str:
    return os.environ.get("DOCKER_HOST") or _UNIX + SOCKET


@process_cache(maxsize=2)
def _client(host: str) -> Any:
    docker = need("docker", "docker", "backend='docker'")
    if is_elsewhere(host):  # containers publish their ports on the loopback of the engine's machine alone
        raise NotAvailable(
            f"the container engine at {host} is on another machine, whose loopback is not reached from here; "
            f"run this there, or set DOCKER_HOST to an engine of this machine, like {_UNIX}{SOCKET}"
        )
    try:
        if host.startswith(_UNIX):
            _try_socket(host.removeprefix(_UNIX))
        return docker.from_env(timeout=_CALL_TIMEOUT_S, version="auto")
    except PermissionError:
        raise NotAvailable(
            f"the container engine at {host} may not be used by this user; "
            "run 'sudo usermod -aG docker $USER' and log in again, or be root"
        ) from None
    except (OSError, docker.errors.DockerException) as error:
        raise NotAvailable(
            f"no container engine answers at {host}; install one (Debian: apt-get install docker.io) and "
            f"start it, or say in DOCKER_HOST where it is ({error})"
        ) from None


def is_elsewhere(host: str) -> bool:
    """Return whether ``DOCKER_HOST`` names an engine on another machine, or cannot be parsed."""
    try:
        parts = urlsplit(host)
        return parts.scheme not in ("unix", "npipe") and not is_loopback(parts.hostname or "")
    except ValueError:
        return True


def _try_socket(path: str) -> None:
    """Connect once to raise the socket's own error, because the client library hides it and leaks a socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CALL_TIMEOUT_S)
        probe.connect(path)


@contextmanager
def engine_errors(what: str) -> Generator[None]:
    """Turn errors of the engine in the block into ``NotAvailable``, whose message begins with ``what``."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        explanation = str(error.explanation or error)
        if port := _PORT_TAKEN.search(explanation):
            raise NotAvailable(
                f"{what}: something else listens at {port[1]} by now; end that, or make the environments anew"
            ) from None
        raise NotAvailable(f"{what}, as the container engine says: {explanation}") from None
    except RequestException as error:
        raise NotAvailable(f"{what}: the container engine does not answer ({error}); restart it") from None


def check_image(image: str) -> None:
    """Raise ``InvalidArgument`` if the text is no legal image name."""
    if not _IMAGE_NAME.fullmatch(image):
        raise InvalidArgument(f"image={shown(image)} names no image; give one like {CORE_IMAGE!r}")


def is_ours(image: str) -> bool:
    """Return whether the image's name is that of one built from this package (``make images``)."""
    return image.partition(":")[0].startswith("envweave-") and "/" not in image


def require_image(client: Any, image: str) -> None:
    """Raise ``NotAvailable``, with the command to get it, if the engine does not have the image."""
    from docker.errors import ImageNotFound

    check_image(image)
    with engine_errors(f"the image {shown(image)} cannot be looked for"):
        try:
            client.images.get(image)
        except ImageNotFound:
            command = "make images" if is_ours(image) else f"docker pull {image}"
            raise NotAvailable(
                f"the image {image} is not on this machine; build or fetch it: {command}"
            ) from None
