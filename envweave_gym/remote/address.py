"""Address of a server: its URL, and a reference to the access token."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.secret_reference import check_reference, read_reference
from envweave_gym.remote import started_servers
from envweave_gym.remote.transports import CONNECTORS, Connector, connector_to

TOKEN = "ENVWEAVE_TOKEN"
"""Environment variable with the access token if ``token=`` is not given."""
_SOCKETS = ("http+unix", "unix")
"""URL schemes of Unix sockets; after the scheme comes the path, with ``/`` as ``%2F`` and ``@`` as ``%40``."""


_tokens: dict[str, str] = {}


@dataclass(frozen=True)
class Address:
    """URL of a server, and where its access token is: ``env:NAME``, ``file:PATH``, or ``None`` for the default."""

    url: str
    token: str | None = None
    since: float = field(default_factory=time.monotonic, compare=False, repr=False)
    """Time of creation, to tell servers at the same URL apart: one that was stopped before that is another server."""

    @classmethod
    def of(cls, name: str, url: Any, token: Any = None) -> Address:
        """Check a URL and a token reference, and return the address; ``name`` is for error messages."""
        parts = _parts(url)
        if parts is None:
            raise InvalidArgument(f"{name}: backend={shown(url)} is not a URL like {url_like(url)}")
        if parts.username or parts.password:
            raise InvalidArgument(f"{name}: the URL holds a secret; give token='env:NAME' or 'file:PATH'")
        if parts.query or parts.fragment:
            raise InvalidArgument(f"{name}: {_surplus(parts)}")
        check_reference(f"{name}: token=", token)
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", token)

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers with the access token; empty if there is none."""
        token = self.secret()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def secret(self) -> str:
        """Return the access token; empty if there is none."""
        token = self._secret() or ""
        if not (token.isascii() and token.isprintable()):
            raise self._no_token()
        return token

    def _secret(self) -> str | None:
        if self.token is None:
            return _tokens.get(self.url) or os.environ.get(TOKEN)
        try:
            return read_reference(self.token)
        except UnicodeDecodeError:
            raise self._no_token() from None
        except KeyError:
            raise InvalidArgument(
                f"{self.url}: there is no token in {self.token}: the variable is not set"
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"{self.url}: there is no token in {self.token}: {error}") from None

    def _no_token(self) -> InvalidArgument:
        where = self.token or f"env:{TOKEN}"
        return InvalidArgument(f"{self.url}: {where} holds no token, which is one line of ASCII characters")

    def connector(self) -> Connector:
        """Return the connector for the URL's scheme."""
        return connector_to(self)

    def ensure(self) -> None:
        """Start the server unless it runs; does nothing for a server that this process did not start."""
        started_servers.ensure(self.url)

    def is_stopped(self) -> bool:
        """Return whether this process has stopped the server for good since the address was created."""
        return started_servers.was_stopped(self.url, self.since)

    def shortcut(self) -> tuple[str, int] | None:
        """Return host and port of a more direct way to the server than its URL, or ``None``."""
        return started_servers.shortcut_to(self.url)

    @property
    def scheme(self) -> str:
        """Scheme of the URL, which selects the transport."""
        return self.url.partition(":")[0]


def is_server_url(url: str) -> bool:
    """Return whether ``url`` has the form of a server's URL."""
    return _parts(url) is not None


def url_like(url: Any) -> str:
    """Return, for errors about ``url``, a URL of a server that has the right form."""
    scheme, _, path = url.partition("://") if isinstance(url, str) else ("", "", "")
    if scheme not in _SOCKETS:
        return "'http://host:port'"
    return f"'{scheme}://{quote(unquote(path) or '/path/of/socket', safe='')}', with %2F for / and %40 for @"


def _parts(url: Any) -> SplitResult | None:
    """Split a server URL into its parts; return ``None`` if it is not valid."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in CONNECTORS or not parts.hostname or parts.port == 0:
            return None
        if parts.scheme in _SOCKETS:
            return parts if parts.path in ("", "/") and "@" not in parts.netloc else None
        parts.hostname.encode("idna")
    except ValueError:  # raised for unbalanced brackets, a bad port, or an impossible host name
        return None
    return parts


def _surplus(parts: SplitResult) -> str:
    """Return the error message for a URL with a query or a fragment."""
    ends = {"?": parts.query, "#": parts.fragment}
    there = f"leave out what comes after {' and '.join(repr(mark) for mark, end in ends.items() if end)}"
    if "token" in parse_qs(parts.query, keep_blank_values=True):
        return (
            f"the URL holds a token; {there}, and put the token in the environment variable {TOKEN}, or in a "
            "file that token='file:PATH' names"
        )
    return f"the URL of a server ends with its host, port and path; {there}"


def remember_token(url: str, token: str) -> None:
    """Use ``token`` from now on for the server at ``url``, which this process has started."""
    _tokens[url] = token
