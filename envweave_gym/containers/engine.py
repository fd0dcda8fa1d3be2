"""The container engine: how it is reached, and what to do where it is not there."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from envweave_gym.faults import NotAvailable, need

SOCKET = "/var/run/docker.sock"
_UNIX = "unix://"
_PATIENCE = 60
"""So many seconds any answer of the engine may take."""


def engine() -> Any:
    """A client of the engine that ``DOCKER_HOST`` names, or of the one of this machine."""
    return _client(os.getpid(), os.environ.get("DOCKER_HOST") or _UNIX + SOCKET)


@lru_cache(maxsize=2)
def _client(pid: int, host: str) -> Any:
    """One for each process: two that were forked must not share connections."""
    docker = need("docker", "docker", "backend='docker'")
    try:
        if host.startswith(_UNIX):
            _try_socket(host.removeprefix(_UNIX))
        return docker.from_env(timeout=_PATIENCE, version="auto")
    except PermissionError:
        raise NotAvailable(
            f"the container engine at {host} may not be used by this user; "
            "run 'sudo usermod -aG docker $USER' and log in again, or be root"
        ) from None
    except (FileNotFoundError, ConnectionRefusedError, docker.errors.DockerException) as error:
        raise NotAvailable(
            f"no container engine answers at {host}; install one (Debian: apt-get install docker.io) and "
            f"start it, or say in DOCKER_HOST where it is ({error})"
        ) from None


def _try_socket(path: str) -> None:
    """Raise what is wrong with the engine's socket; the client library hides it, and leaves a socket open."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE)
        probe.connect(path)


@contextmanager
def told(what: str) -> Generator[None]:
    """Turn what the engine refuses into one sentence that says what was asked of it."""
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        raise NotAvailable(f"{what}, as the container engine says: {error.explanation or error}") from None
