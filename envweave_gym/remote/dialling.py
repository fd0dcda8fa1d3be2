"""Sockets that lead to a server: who is asked for its address, through which proxy, and with which TLS."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillLooking
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.remote.address import unix_path
from envweave_gym.remote.errors import OUT_OF_ORDER
from envweave_gym.remote.transport import left, too_late
from envweave_gym.remote.upkeep import place_of

_OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
_PORTS = {"http": 80, "https": 443}
_LONGEST_HEAD = 1 << 16
_lookups: dict[tuple[int, str, int], Future[list[Any]]] = {}
"""The names that are being looked up, by process."""


class NoTunnel(Exception):
    """The proxy opens no tunnel; it may take requests all the same."""


# Which way


def proxy_for(url: str) -> str | None:
    """The proxy that the environment variables name for a server; there is never one before loopback."""
    if unix_path(url) is not None:
        return None
    host = (urlsplit(url).hostname or "").rstrip(".")
    literal = _literal(host)
    is_named_here = host.rpartition(".")[2] == "localhost"
    if literal.is_loopback or literal.is_unspecified if literal else is_named_here:
        return None
    from requests.utils import get_environ_proxies, select_proxy

    proxy = select_proxy(url, get_environ_proxies(url))
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy or None


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


def trusted() -> str | None:
    """The certificates to trust, a file or a directory, where that is said."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")


# On the way


def dialled(url: str, deadline: float) -> socket.socket:
    """A socket that is connected to the first address of ``url``, or of its proxy, that answers.

    Each may take its share of the time that is left, so that one of which nothing is heard leaves some.
    """
    if (path := unix_path(url)) is not None:
        return at_unix_socket(path, left(deadline, url))
    shortcut = place_of(url)
    proxy = proxy_for(url) if shortcut is None else None
    try:
        host, port = shortcut or _place(proxy or url)
    except ValueError as error:
        raise NoTunnel(f"{proxy}: {error}") from None
    if proxy is not None and not proxy.startswith("http://"):
        raise NoTunnel(proxy)
    failed = OSError(f"{host} has no address")
    found = _addresses(host, port, deadline, url)
    for place, (family, _, _, _, where) in enumerate(found):
        until = time.monotonic() + left(deadline, url) / (len(found) - place)
        try:
            return _reached(family, where, proxy, url, until)
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            failed = error
    raise failed


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


def _addresses(host: str, port: int, deadline: float, url: str) -> list[Any]:
    """The addresses of a name.

    Nothing ends a lookup but itself, so it is done in a thread, for which all wait who want to know the same.
    """
    if _literal(host):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    key, mine = (os.getpid(), host, port), Future[list[Any]]()
    lookup = _lookups.setdefault(key, mine)
    if lookup is mine:
        threading.Thread(target=_look_up, args=(key, mine), name=f"address of {host}", daemon=True).start()
    try:
        return lookup.result(left(deadline, url))
    except StillLooking:
        raise too_late(url) from None


def _look_up(key: tuple[int, str, int], lookup: Future[list[Any]]) -> None:
    try:
        found = socket.getaddrinfo(*key[1:], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        _lookups.pop(key)
        lookup.set_exception(OSError(f"{key[1]} has no address: {error}"))
    else:
        _lookups.pop(key)
        lookup.set_result(found)


def at_unix_socket(path: str, timeout: float | None) -> socket.socket:
    """A socket that is connected to the Unix socket at ``path``."""
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout)
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


def _reached(family: int, where: Any, proxy: str | None, url: str, deadline: float) -> socket.socket:
    """A socket that is connected to this address and leads to ``url``."""
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in _OPTIONS:
            plain.setsockopt(*option)
        plain.settimeout(left(deadline, url))
        plain.connect(where)
        if proxy is not None:
            _open_tunnel(plain, proxy, url, deadline)
        if not url.startswith("https:"):
            return plain
        plain.settimeout(left(deadline, url))
        return _tls().wrap_socket(plain, server_hostname=_place(url)[0])
    except BaseException:
        plain.close()
        raise


def _open_tunnel(plain: socket.socket, proxy: str, url: str, deadline: float) -> None:
    """Let the proxy connect this socket to the server."""
    from requests.auth import _basic_auth_str
    from requests.utils import get_auth_from_url

    host, port = _place(url)
    goal = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {goal} HTTP/1.1", f"Host: {goal}"]
    user, password = get_auth_from_url(proxy)
    if user:
        lines.append(f"Proxy-Authorization: {_basic_auth_str(user, password)}")
    plain.settimeout(left(deadline, url))
    plain.sendall("\r\n".join([*lines, "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < _LONGEST_HEAD:
        plain.settimeout(left(deadline, url))
        byte = plain.recv(1)  # what comes after the head comes through the tunnel
        if not byte:
            raise ConnectionError(f"{url}: its proxy has hung up")
        head += byte
    status = head.split(maxsplit=2)[1:2]
    if status and status[0].decode(errors="replace") in map(str, OUT_OF_ORDER):
        raise ConnectionError(f"{url} is not reached by its proxy: HTTP {status[0].decode()}")
    if status != [b"200"]:
        raise NoTunnel(f"{proxy} answered {head[:40]!r}")


@cache
def _tls() -> ssl.SSLContext:
    """Trusts whom this machine trusts, or else the same certificates as ``requests`` is told to."""
    told = trusted()
    if told and os.path.isdir(told):
        return ssl.create_default_context(capath=told)
    return ssl.create_default_context(cafile=told)
