"""Listening sockets of a server on a port or a path, its URL, and a warning if other machines reach it."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.loopback import address_in, is_loopback
from envweave_gym_server.core.settings import Settings

_HOST, _PORT = "127.0.0.1", 8000
_BACKLOG = 2048
_CONNECT_TIMEOUT_S = 1.0
_OWNER_ONLY = stat.S_IRUSR | stat.S_IWUSR


def listen(host: str | None, port: int | None) -> socket.socket:
    """Return a socket that listens on ``host`` and ``port``, by default 127.0.0.1 and 8000."""
    host, port = _HOST if host is None else host, _PORT if port is None else port
    if not 0 <= port < 1 << 16:
        raise InvalidArgument(f"port {port} is no port; give one from 1 to 65535, or 0 for a free one")
    try:
        family, *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".")
        raise InvalidArgument(
            f"{shown(host)} port {port} cannot be listened on: {reason}; choose another, or port 0"
        ) from None


def listen_at(path: str) -> socket.socket:
    """Return a Unix socket that listens at a path, for this user only; replace a socket that no server uses."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_behind(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, _OWNER_ONLY)  # nobody can have connected: it does not listen yet
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise InvalidArgument(f"{shown(path)} cannot be listened on: {reason}; choose another path") from None
    return listener


def _is_left_behind(path: str) -> bool:
    """Return whether there is a socket at the path on which no server listens."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_CONNECT_TIMEOUT_S)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except (TimeoutError, BlockingIOError):  # somebody listens, and has no time
            return False
    return False


def hosts_of(host: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the ``Host`` names that are accepted: ``allowed`` and the host; all if it listens on all addresses.

    ``allowed`` restricts them in that case too.
    """
    if host is not None and not _is_wildcard(host):
        return (*Settings.hosts, host.strip("[]"), *allowed)
    if host is None or allowed:
        return (*Settings.hosts, *allowed)
    return ("*",)


def _is_wildcard(host: str) -> bool:
    address = address_in(host)
    return host == "" or (address is not None and address.is_unspecified)


def warn(host: str | None, token: str | None) -> None:
    """Log a warning if other machines reach the server, because nothing is encrypted."""
    if is_loopback(_HOST if host is None else host):
        return
    who = "anybody who reaches it may use it" if token is None else "whoever has the token may use it"
    line = f"{host or 'every address'} is open to the network: {who}, and nothing is encrypted"
    print(f"envweave: warning: {line}; put a proxy with TLS in front", file=sys.stderr)


def url_of(host: str | None, listener: socket.socket) -> str:
    """Return the URL of the server, with the host name that was given."""
    address = listener.getsockname()
    if isinstance(address, str):
        return f"http+unix://{quote(address, safe='')}"
    name = _HOST if host is None or _is_wildcard(host) else host.strip("[]")
    return f"http://{f'[{name}]' if ':' in name else name}:{address[1]}"
