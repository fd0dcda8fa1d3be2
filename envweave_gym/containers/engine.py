"""The container engine: how it is reached, and what to do where it is not there."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.faults import NotAvailable, need
from envweave_gym.os_support.process_local import process_cache

SOCKET = "/var/run/docker.sock"
"""Where the engine listens, on this machine and in containers that may use it."""
_UNIX = "unix://"
_HERE = ("localhost", "127.0.0.1", "::1")
_PATIENCE = 60
"""So many seconds any answer of the engine may take."""
_TAKEN = re.compile(r"(?:listen tcp4?|Bind for) ([\d.]+:\d+).*(?:already in use|already allocated)")
"""How engines say that a port is not free."""


def engine() -> Any:
    """A client of the engine that ``DOCKER_HOST`` names, or of the one of this machine."""
    return _client(_host())


def engine_socket() -> Path:
    """The socket of the engine, for containers that may use it."""
    host = _host()
    path = Path(host.removeprefix(_UNIX))
    if not host.startswith(_UNIX):
        raise NotAvailable(f"docker_sock=True: DOCKER_HOST={host} is no socket that could be shown; {_SET}")
    if not path.is_socket():
        raise NotAvailable(f"docker_sock=True: there is no socket at {path}; {_SET}")
    return path


_SET = f"set it to the socket of an engine of this machine, like {_UNIX}{SOCKET}"


def _host() -> str:
    return os.environ.get("DOCKER_HOST") or _UNIX + SOCKET


@process_cache(maxsize=2)
def _client(host: str) -> Any:
    """One for each process: two that were forked must not share connections."""
    docker = need("docker", "docker", "backend='docker'")
    _require_this_machine(host)
    try:
        if host.startswith(_UNIX):
            _try_socket(host.removeprefix(_UNIX))
        return docker.from_env(timeout=_PATIENCE, version="auto")
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


def _require_this_machine(host: str) -> None:
    """Containers publish their ports on the loopback of the machine of the engine, and on nothing else."""
    if is_elsewhere(host):
        raise NotAvailable(
            f"the container engine at {host} is on another machine, whose loopback is not reached from here; "
            f"run this there, or set DOCKER_HOST to an engine of this machine, like {_UNIX}{SOCKET}"
        )


def is_elsewhere(host: str) -> bool:
    """Whether an engine is on another machine, or nobody can say where."""
    try:
        place = urlsplit(host)
        return place.scheme not in ("unix", "npipe") and place.hostname not in _HERE
    except ValueError:
        return True


def _try_socket(path: str) -> None:
    """Raise what is wrong with the engine's socket; the client library hides it, and leaves a socket open."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE)
        probe.connect(path)


@contextmanager
def told(what: str) -> Generator[None]:
    """Turn what the engine refuses into one sentence that says what was asked of it."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        said = str(error.explanation or error)
        if port := _TAKEN.search(said):
            raise NotAvailable(
                f"{what}: something else listens at {port[1]} by now; end that, or make the environments anew"
            ) from None
        raise NotAvailable(f"{what}, as the container engine says: {said}") from None
    except RequestException as error:
        raise NotAvailable(f"{what}: the container engine does not answer ({error}); restart it") from None
