"""Checks of ``envweave doctor`` on the container engine: does it answer, its images, containers left behind.

They send three GET requests over its socket, and so need no client library.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

from envweave_gym.cli.doctor.check import Check
from envweave_gym.containers.engine import is_elsewhere
from envweave_gym.containers.ownership import OWNER, is_left_behind
from envweave_gym.registry.catalog import cards

_ENGINE_TIMEOUT_S = 2.0


def engine_checks() -> Iterator[Check]:
    """Ping a container engine over its socket, and count the containers that killed owners have left."""
    addresses = _engine_addresses()
    problems: list[str] = []
    for address in addresses:
        try:
            _get(address, "/_ping")
        except (OSError, ValueError) as error:
            problems.append(f"{address}: {getattr(error, 'strerror', None) or error}")
            continue
        if is_elsewhere(address):
            problems.append(f"{address} is on another machine, whose loopback is not reached from here")
            continue
        yield Check(part="machine", name="docker engine", status="ok", detail=f"answers at {address}")
        yield from _left_behind(address)
        yield from _images(address)
        return
    yield Check(
        part="machine",
        name="docker engine",
        status="missing",
        detail="; ".join(problems) or "no socket of an engine found",
        next_step="install and start Docker, let this user open its socket, or set DOCKER_HOST",
    )


def _engine_addresses() -> list[str]:
    """Return the address in ``DOCKER_HOST``, or else the usual sockets of an engine that exist here."""
    chosen = os.environ.get("DOCKER_HOST")
    if chosen:
        return [chosen]
    usual = [Path("/var/run"), Path(os.environ.get("XDG_RUNTIME_DIR", "/run")), Path.home() / ".docker/run"]
    return [f"unix://{folder / 'docker.sock'}" for folder in usual if (folder / "docker.sock").exists()]


def _images(address: str) -> Iterator[Check]:
    """Check which images of our IDs the engine has; yields nothing if the engine does not answer."""
    wanted = sorted({card.image for card in cards().values() if card.image is not None})
    try:
        found = json.loads(_get(address, "/images/json"))
        # Names of images, without their tags.
        there = {tag.rpartition(":")[0] for image in found for tag in image.get("RepoTags") or ()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    absent = [image for image in wanted if image not in there]
    detail = f"{len(wanted) - len(absent)} of {len(wanted)}"
    yield Check(
        part="machine",
        name="images",
        status="missing" if absent else "ok",
        detail=f"{detail}, without {', '.join(absent)}" if absent else detail,
        next_step="build them with 'make images' in the source, for backend='docker'" if absent else "",
    )


def _left_behind(address: str) -> Iterator[Check]:
    """Count the containers whose owners are gone; yields nothing if the engine does not answer."""
    labelled = quote(json.dumps({"label": [OWNER]}))
    try:
        found = json.loads(_get(address, f"/containers/json?all=1&filters={labelled}"))
        count = sum(is_left_behind(container["Labels"] or {}) for container in found)
    except (OSError, ValueError, LookupError, TypeError):
        return
    what = f"{count or 'no'} container{'' if count == 1 else 's'} of owners that are gone"
    todo = "remove with 'envweave doctor --sweep'" if count else ""
    yield Check(part="machine", name="left behind", status="ok", detail=what, next_step=todo)


def _get(address: str, path: str) -> bytes:
    """Return the body of a GET from a container engine.

    Raise ``OSError``, or ``ValueError`` for a bad address.
    """
    url = urlsplit(address)
    if url.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ENGINE_TIMEOUT_S)
            connection.connect(url.path)
            return _exchange(connection, path)
    elif url.scheme in ("tcp", "http") and url.hostname:
        with socket.create_connection((url.hostname, url.port or 2375), _ENGINE_TIMEOUT_S) as connection:
            return _exchange(connection, path)
    raise ValueError("only unix:// and tcp:// addresses are supported")


def _exchange(connection: socket.socket, path: str) -> bytes:
    # HTTP/1.0: the engine sends no chunks, and closes the connection after its answer.
    connection.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise OSError("the listener there is no engine that speaks plain HTTP")
    return body
