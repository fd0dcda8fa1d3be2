"""Where a server is and how it is asked: its URL, its token, and what it says of its environments."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.faults import InvalidArgument, NotAvailable, shown
from envweave_gym.remote.errors import raise_refused
from envweave_gym.wire.messages import Answer, Create, Refused, encode, read_reply

TOKEN = "ENVWEAVE_TOKEN"
"""The environment variable whose value is the token where no other is named."""

FRAMES = {"Content-Type": "application/msgpack"}
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


@lru_cache(maxsize=256)
def _described(address: Address, create: str, deadline: float) -> dict[str, Any]:
    import requests

    message = Create(**json.loads(create))
    address.ensure()
    try:
        response = requests.post(
            f"{address.url}/v1/describe",
            encode(message),
            headers={**address.headers(), **FRAMES},
            timeout=deadline,
        )
    except requests.RequestException as error:
        raise ConnectionError(f"{address.url} does not answer: {error}") from None
    return _description(address, response)


def _description(address: Address, response: Any) -> dict[str, Any]:
    try:
        reply = read_reply(response.content)
    except ValueError:
        raise NotAvailable(f"{address.url} is no envweave-gym server: HTTP {response.status_code}") from None
    if isinstance(reply, Refused):
        raise_refused(reply, address.url)
    if not isinstance(reply, Answer):
        raise NotAvailable(f"{address.url} answered with {type(reply).__name__}; it speaks another version")
    return reply.value


def describe(address: Address, create: Create, deadline: float) -> dict[str, Any]:
    """What the server says of an environment: asked once in a process, and known to those forked from it."""
    fields = {"env_id": create.env_id, "api": create.api, "kwargs": create.kwargs}
    return _described(address, json.dumps(fields, sort_keys=True), deadline)
