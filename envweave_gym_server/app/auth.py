"""Access checks of every HTTP request: token, host and origin.

Unix sockets have a check of their own, in ``protocols/native/framed_sessions.py``.
"""

from __future__ import annotations

import hmac
import re
from functools import lru_cache
from ipaddress import ip_address

from flask import Flask, request

from envweave_gym.core.faults import shown
from envweave_gym_server.core.errors import Forbidden, Unauthorized
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.protocols.current_app import has_token_of_blueprint

OPEN = ("/health",)
"""Paths that need no token."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\],]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(.+)", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


def protect(app: Flask, settings: Settings) -> None:
    """Check host, origin and token of every request before its view runs, also of WebSocket handshakes."""
    token = None if settings.token is None else settings.token.encode()
    hosts = {host_name(host) for host in settings.hosts}

    @app.before_request
    def check() -> None:
        check_host(hosts)
        check_origin()
        if token is not None and request.path not in OPEN and not has_token_of_blueprint():
            _check_token(token)


def _check_token(token: bytes) -> None:
    given = given_token()
    if given is None:
        raise Unauthorized("the token is missing; send it in the header 'Authorization: Bearer …'")
    if not hmac.compare_digest(given, token):
        raise Unauthorized("the token is wrong; the server was started with another")


def given_token() -> bytes | None:
    """Return the token of a request, from its header or from ``?token=`` in the URL.

    The URL is for links, and for WebSockets that web pages of this server open.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip().encode("latin-1", "replace")  # as WSGI has decoded it
    if request.method in ("GET", "HEAD") and "token" in request.args:
        return request.args["token"].encode()
    return None


def check_host(hosts: set[str]) -> None:
    """Refuse a request whose ``Host`` header is not one of this server's names.

    A web page may point a name of its own at this machine (DNS rebinding).
    """
    if "*" in hosts:
        return
    given = request.headers.get("Host", "")
    match = _HOST.fullmatch(given)
    if match is None or host_name(match[1]) not in hosts:
        raise Forbidden(f"the host {shown(given)} is not served; there are {', '.join(sorted(hosts))}")


def check_origin() -> None:
    """Refuse requests of web pages from other origins; programs send no ``Origin``."""
    origin = request.headers.get("Origin")
    if origin is None:
        return
    match = _ORIGIN.fullmatch(origin)
    addresses = (
        []
        if match is None
        else [_address_of(text, match[1].lower()) for text in (match[2], request.headers.get("Host", ""))]
    )
    if not addresses or addresses[0] is None or addresses[0] != addresses[1]:
        raise Forbidden(f"requests of the web page {shown(origin)} are not answered")


def _address_of(text: str, scheme: str) -> tuple[str, int] | None:
    """Return host name and port of ``host:port``, or ``None`` if it is malformed; ``scheme`` gives the default port."""
    match = _HOST.fullmatch(text)
    return None if match is None else (host_name(match[1]), int(match[2] or _PORTS[scheme]))


@lru_cache(maxsize=256)
def host_name(host: str) -> str:
    """Return a host name or IP address in one canonical spelling, for comparisons."""
    bare = host.strip("[]").rstrip(".").lower()
    try:
        return str(ip_address(bare))
    except ValueError:
        return bare
