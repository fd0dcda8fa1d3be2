"""Who may use the server: a token, and no web page of somebody else's."""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from flask import Flask, request

from envweave_gym.faults import EnvweaveError, shown
from envweave_gym_server.settings import Settings

OPEN = ("/health",)
"""What is told to everybody."""


class Unauthorized(EnvweaveError):
    """The token is missing or wrong."""


class Forbidden(EnvweaveError):
    """The request comes from where none may come from."""


def protect(app: Flask, settings: Settings) -> None:
    """Check every request before it is looked at."""

    @app.before_request
    def check() -> None:
        _check_host(settings)
        _check_origin()
        if settings.token is not None and request.path not in OPEN:
            _check_token(settings.token)


def _check_token(token: str) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        what = "is wrong" if given else "is missing"
        raise Unauthorized(f"the token {what}; send it in the header 'Authorization: Bearer …'")


def _check_host(settings: Settings) -> None:
    if "*" in settings.hosts:
        return
    name = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    if name not in {host.strip("[]") for host in settings.hosts}:
        raise Forbidden(f"the host {shown(name)} is not served; there are {', '.join(settings.hosts)}")


def _check_origin() -> None:
    """Let browsers in from pages of this server only; programs send no origin."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("Host"):
        raise Forbidden(f"requests of the web page {shown(origin)} are not answered")
