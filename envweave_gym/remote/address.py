"""Where a server is, and the token that it asks for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.faults import InvalidArgument, shown

TOKEN = "ENVWEAVE_TOKEN"
"""The environment variable whose value is the token where no other is named."""

_tokens: dict[str, str] = {}
_keepers: dict[str, Callable[[], None]] = {}


@dataclass(frozen=True)
class Address:
    """The URL of a server, and where its token is: ``env:NAME``, ``file:PATH``, or unsaid."""

    url: str
    token: str | None = None

    @classmethod
    def of(cls, name: str, url: Any, token: Any = None) -> Address:
        """A checked address; ``name`` is what errors call the environment."""
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(f"{name}: backend={shown(url)} is not a URL like 'http://host:port'")
        if parts.username or parts.password:
            raise InvalidArgument(f"{name}: the URL holds a secret; give token='env:NAME' or 'file:PATH'")
        if token is not None and not (isinstance(token, str) and token.startswith(("env:", "file:"))):
            raise InvalidArgument(f"{name}: token= is a reference, 'env:NAME' or 'file:PATH', not a token")
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", token)

    def headers(self) -> dict[str, str]:
        """The headers that show the token, where there is one."""
        token = self._secret()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _secret(self) -> str | None:
        if self.token is None:
            return _tokens.get(self.url) or os.environ.get(TOKEN)
        kind, _, where = self.token.partition(":")
        try:
            return os.environ[where] if kind == "env" else Path(where).read_text().strip()
        except (KeyError, OSError) as error:
            raise InvalidArgument(f"{self.url}: there is no token in {self.token}: {error!r}") from None

    def ensure(self) -> None:
        """Start the server where this process keeps it."""
        keeper = _keepers.get(self.url)
        if keeper is not None:
            keeper()

    @property
    def websocket(self) -> str:
        """The URL of its WebSockets."""
        return "ws" + self.url.removeprefix("http")


def remember_token(url: str, token: str) -> None:
    """Use a token for a server that this process has started itself."""
    _tokens[url] = token


def keep_up(url: str, ensure: Callable[[], None] | None) -> None:
    """Call ``ensure`` before every connection to this server: it starts the server unless it runs."""
    if ensure is None:
        _keepers.pop(url, None)
    else:
        _keepers[url] = ensure
