"""Sockets connected to the host of a URL: name lookup with a deadline, proxies, tunnels, TLS and Unix sockets."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillLooking
from functools import cache
from ipaddress import ip_network
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from envweave_gym.core.loopback import address_in, is_loopback
from envweave_gym.net.deadlines import TimedSocket, seconds_left, too_late
from envweave_gym.os_support.process_local import ProcessLocal

UNIX = "http+unix"
"""Scheme of HTTP over a Unix socket: ``http+unix://`` and the path, with ``/`` as ``%2F``."""
GATEWAY_ERRORS = (502, 503, 504)
"""HTTP statuses with which a proxy reports that it cannot reach the server."""

_OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1))
_PORTS = {"http": 80, "https": 443}
_LARGEST_HEAD_BYTES = 1 << 16
_Lookup = Future[list[Any]]
_lookups = ProcessLocal[dict[tuple[str, int], _Lookup]](dict)
"""Address lookups in progress, by host name and port."""


class TunnelRefused(ConnectionError):
    """Error if a proxy opens no tunnel to the server, although it may still forward plain HTTP requests."""


# Where to


def unix_path(url: str) -> str | None:
    """Return the path of the Unix socket in a ``http+unix`` URL; ``None`` for other URLs."""
    scheme, _, path = url.partition("://")
    return unquote(path.rstrip("/")) if scheme == UNIX else None


def proxy_for(url: str) -> str | None:
    """Return the URL of the proxy that environment variables such as ``https_proxy`` give for a server, or ``None``.

    Loopback addresses and the hosts in ``no_proxy`` never get a proxy.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if unix_path(url) is not None or _is_here(host) or _is_excepted(host, parts.netloc):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy or None


def _is_here(host: str) -> bool:
    address = address_in(host)  # a connection to 0.0.0.0 reaches this machine too
    return is_loopback(host) or (address is not None and address.is_unspecified)


def _is_excepted(host: str, netloc: str) -> bool:
    if proxy_bypass(netloc.rpartition("@")[2]):
        return True
    address = address_in(host)
    entries = getproxies().get("no", "").split(",") if address else ()
    return any(address in network for entry in entries if (network := _network(entry.strip())) is not None)


def _network(entry: str) -> Any:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None


# On the way


def dial(
    url: str, deadline: float, *, at: tuple[str, int] | None = None, proxy: str | None = None
) -> socket.socket:
    """Connect to the first address of a URL's host that answers, with a TLS handshake for ``https:``.

    ``at`` is a host and port to connect to instead. With a ``proxy`` the connection is a tunnel through it. The
    time until the deadline is divided among the addresses, so that one that does not answer leaves time for
    others.
    """
    if (path := unix_path(url)) is not None:
        return _connected_unix(path, url, deadline)
    if proxy is not None and not proxy.startswith("http://"):
        raise TunnelRefused(
            f"{url}: tunnels go through proxies with http:// only, and this is {_shown(proxy)}"
        )
    host, port = at or _host_and_port(proxy or url)
    failed = OSError(f"{host} has no address")
    found = _addresses(host, port, deadline, url)
    for index, (family, _, _, _, where) in enumerate(found):
        until = time.monotonic() + seconds_left(deadline, url) / (len(found) - index)
        try:
            return _connected(family, where, proxy, url, until)
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            failed = error
    raise failed


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        raise TunnelRefused(f"{_shown(url)} is no proxy; give a URL like http://host:port") from None
    return parts.hostname or "", port


def _shown(url: str) -> str:
    """Return a URL for error messages, without user and password."""
    return f"{url.partition('://')[0]}://{url.rpartition('@')[2].rpartition('://')[2]}"


def _addresses(host: str, port: int, deadline: float, url: str) -> list[Any]:
    """Resolve a host name to addresses; raise ``TimeoutError`` after the deadline.

    A lookup cannot be interrupted, so it runs in a thread of its own; callers with the same name share it.
    """
    if address_in(host):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    key, mine = (host, port), _Lookup()
    lookup = _lookups.value.setdefault(key, mine)
    if lookup is mine:
        thread = threading.Thread(target=_look_up, args=(key, mine), name=f"address of {host}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # this machine has no more threads
            _look_up(key, mine)
    try:
        return lookup.result(seconds_left(deadline, url))
    except StillLooking:
        raise too_late(url) from None


def _look_up(key: tuple[str, int], lookup: _Lookup) -> None:
    try:
        found = socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        del _lookups.value[key]
        lookup.set_exception(OSError(f"{key[0]} has no address: {error}"))
    else:
        del _lookups.value[key]
        lookup.set_result(found)


def _connected_unix(path: str, url: str, deadline: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(seconds_left(deadline, url))
        opened.connect(path)
    except BaseException:
        opened.close()
        raise
    return opened


def _connected(family: int, where: Any, proxy: str | None, url: str, deadline: float) -> socket.socket:
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        for option in _OPTIONS:
            plain.setsockopt(*option)
        plain.settimeout(seconds_left(deadline, url))
        plain.connect(where)
        if proxy is not None:
            _open_tunnel(TimedSocket(plain), proxy, url, deadline)
        if not url.startswith("https:"):
            return plain
        plain.settimeout(seconds_left(deadline, url))
        return _tls(trusted_certificates()).wrap_socket(plain, server_hostname=urlsplit(url).hostname)
    except BaseException:
        plain.close()
        raise


def proxy_headers(proxy: str) -> dict[str, str]:
    """Return the HTTP header with user and password from a proxy's URL; an empty dict if it has none."""
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _open_tunnel(plain: TimedSocket, proxy: str, url: str, deadline: float) -> None:
    """Have the proxy connect this socket to the server (HTTP ``CONNECT``); raise ``TunnelRefused`` if it does not."""
    host, port = _host_and_port(url)
    goal = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = {"Host": goal, **proxy_headers(proxy)}
    lines = [f"CONNECT {goal} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    plain.send_all("\r\n".join(lines).encode(), deadline)
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < _LARGEST_HEAD_BYTES:
        byte = plain.receive_some(1, deadline)  # what comes after the head comes through the tunnel
        if not byte:
            raise ConnectionError(f"{url}: its proxy has hung up")
        head += byte
    status = head.split(maxsplit=2)[1:2]
    if status and status[0].decode(errors="replace") in map(str, GATEWAY_ERRORS):
        raise ConnectionError(f"{url} is not reached by its proxy: HTTP {status[0].decode()}")
    if status != [b"200"]:
        raise TunnelRefused(f"{url}: its proxy opens no tunnel, and answered {head[:40]!r}")


# TLS


def trusted_certificates() -> str | None:
    """Return the path in ``REQUESTS_CA_BUNDLE`` or ``CURL_CA_BUNDLE``, of trusted certificates, or ``None``."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")


@cache
def _tls(certificates: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts ``certificates``, or if that is ``None`` this machine's and ``certifi``'s."""
    if certificates:
        if os.path.isdir(certificates):
            return ssl.create_default_context(capath=certificates)
        return ssl.create_default_context(cafile=certificates)
    context = ssl.create_default_context()
    try:
        import certifi
    except ImportError:
        return context
    context.load_verify_locations(certifi.where())
    return context
