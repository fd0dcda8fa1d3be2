"""Parses and checks descriptions of MCP servers: a command or a URL, as in ``mcp.json``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.faults import InvalidArgument, nearest, shown
from envweave_gym.core.secret_reference import read_reference

_KEYS = ("name", "command", "args", "env", "cwd", "url", "headers", "timeout", "connect_timeout")
_FOREIGN_KEYS = ("type", "transport", "disabled", "autoApprove", "alwaysAllow", "description")
"""Keys in ``mcp.json`` that other programs use; they are ignored."""
_TRANSPORTS = ("stdio", "http", "streamable-http", "streamableHttp", "streamable_http")
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE"),
    "LD_LIBRARY_PATH",
)
"""The environment variables that a server inherits from this process; all others stay private."""
_REFERENCE = re.compile(r"(?P<before>(?:Bearer |Basic |Token )?)(?P<reference>(?:env|file):.+)")
_SHORTEST_SECRET, _SHORTEST_PLAIN_SECRET = 4, 8
"""Length in characters from which errors hide a value that came from a reference, resp. from the description."""
_PROGRAM = re.compile(r"[\w.][\w.@+-]*")
_LAUNCHERS = re.compile(r"npx|uvx|uv|node|bunx?|deno|docker|podman|python[\d.]*")


@dataclass(frozen=True)
class ServerSpec:
    """The checked description of a server; secrets in it are references, which are read when it is opened."""

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout: float = 30.0
    connect_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise InvalidArgument(f"MCP server: name={shown(self.name)} is not a name; give a text")
        if bool(self.command) == (self.url is not None):
            raise InvalidArgument(f"{self}: give either its command or its url")
        for which in ("timeout", "connect_timeout"):
            check_deadline(str(self), which, getattr(self, which))
        kind, foreign = ("command", ["headers"]) if self.url is None else ("url", ["env", "cwd"])
        for which in foreign:
            if getattr(self, which):
                raise InvalidArgument(f"{self}: {which}= is not for a server with a {kind}")

    def __str__(self) -> str:
        return f"MCP server {self.name!r}"

    def key(self) -> str:
        """Return a text that is the same for equal descriptions, for sharing servers."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def environment(self) -> dict[str, str]:
        """Return all environment variables for the server's process."""
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        return inherited | {key: self._resolved(value) for key, value in self.env.items()}

    def resolved_headers(self) -> dict[str, str]:
        """Return the headers of every request, with references to secrets replaced by the secrets."""
        headers = {key: self._resolved(value) for key, value in self.headers.items()}
        for key, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise InvalidArgument(f"{self}: the header {key} is not one line of ASCII characters")
        return headers

    def secrets(self) -> list[str]:
        """Return the values that errors must not contain; very short ones are left out, as they are no secrets."""
        found: list[str] = []
        for value in (*self.env.values(), *self.headers.values()):
            with suppress(InvalidArgument):  # a reference that leads nowhere
                secret = self._resolved(value).split(" ")[-1]
                is_plain = value.endswith(secret)
                if len(secret) >= (_SHORTEST_PLAIN_SECRET if is_plain else _SHORTEST_SECRET):
                    found.append(secret)
        return found

    def _resolved(self, value: str) -> str:
        """Replace a reference ``env:NAME`` or ``file:PATH`` in the value by the secret."""
        found = _REFERENCE.fullmatch(value)
        if found is None:
            return value
        try:
            return found["before"] + read_reference(found["reference"])
        except (KeyError, OSError, ValueError) as error:
            raise InvalidArgument(f"{self}: there is nothing in {value}: {type(error).__name__}") from None


def spec_of(given: Any, **options: Any) -> ServerSpec:
    """Make a ``ServerSpec`` of a command as a list, a dict as in ``mcp.json``, or a URL.

    ``options`` are ``name``, ``timeout`` and ``connect_timeout``; those that are None are ignored. Raise
    ``InvalidArgument`` for an invalid description.
    """
    if isinstance(given, str):
        given = {"url": given}
    elif isinstance(given, list | tuple):
        given = {"command": given}
    elif not isinstance(given, Mapping):
        raise InvalidArgument(
            f"MCP server: {shown(given)} is none; give a command as list, a dict as in mcp.json, or a URL"
        )
    fields = {**given, **{key: value for key, value in options.items() if value is not None}}
    for key in fields:
        if key not in _KEYS:
            hint = nearest(key, _KEYS) if isinstance(key, str) else ""
            raise InvalidArgument(f"MCP server: there is no {shown(key)}{hint}; it has {', '.join(_KEYS)}")
    fields["command"] = _command(fields.get("command", []), fields.pop("args", []))
    fields["url"], fields["cwd"] = _url(fields.get("url")), _folder(fields.get("cwd"))
    fields |= {which: _texts(which, fields.get(which)) for which in ("env", "headers")}
    fields.setdefault("name", _default_name(fields["command"], fields["url"]))
    return ServerSpec(**fields)


def specs_in(config: Any) -> list[ServerSpec]:
    """Return the servers in the content of an ``mcp.json``, except those with ``"disabled": true``."""
    servers = config.get("mcpServers") if isinstance(config, Mapping) else None
    if not isinstance(servers, Mapping) or not all(isinstance(one, Mapping) for one in servers.values()):
        raise InvalidArgument(f'MCP servers: {shown(config)} is not like {{"mcpServers": {{name: {{…}}}}}}')
    found: list[ServerSpec] = []
    for name, server in servers.items():
        kind = server.get("type", server.get("transport", "stdio"))
        if kind not in _TRANSPORTS:
            raise InvalidArgument(
                f"MCP server {name!r}: type {shown(kind)} is unknown; there are stdio and http"
            )
        if not server.get("disabled"):
            ours = {key: value for key, value in server.items() if key not in _FOREIGN_KEYS}
            found.append(spec_of({"name": name, **ours}))
    return found


def _command(command: Any, arguments: Any) -> tuple[str, ...]:
    words = [command] if isinstance(command, str) else command
    for several in (words, arguments):
        if not isinstance(several, list | tuple):
            raise InvalidArgument(f"MCP server: {shown(several)} is no command; give a list of texts")
    full = [str(word) if isinstance(word, PurePath) else word for word in (*words, *arguments)]
    for index, word in enumerate(full):
        if not isinstance(word, str) or "\0" in word or (index == 0 and not word):
            raise InvalidArgument(f"MCP server: its command has {shown(word)}, which is no word of one")
    return tuple(full)


def _url(url: Any) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, is_usable = None, False
    if parts is None or not is_usable:
        raise InvalidArgument(
            f"MCP server: {shown(url)} is not a URL like 'http://host:port/mcp'; give a command as a list"
        )
    if parts.username or parts.password:
        raise InvalidArgument(
            "MCP server: its URL holds a secret; give headers={'Authorization': 'env:NAME'}"
        )
    return url


def _texts(which: str, given: Any) -> dict[str, str]:
    if not isinstance(given or {}, Mapping):
        raise InvalidArgument(f"MCP server: {which} is not a dict of texts, but a {type(given).__name__}")
    for key, value in (given or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)) or not key or "\0" in key + value:
            raise InvalidArgument(f"MCP server: {which}[{shown(key)}] is not a text")
    return dict(given or {})


def _folder(cwd: Any) -> str | None:
    if cwd is None or isinstance(cwd, str):
        return cwd
    if isinstance(cwd, PurePath):
        return str(cwd)
    raise InvalidArgument(f"MCP server: cwd={shown(cwd)} is not the path of a folder")


def _default_name(command: tuple[str, ...], url: str | None) -> str:
    """Return a name for a server: its program (not the launcher, such as ``npx``), or the host of its URL."""
    if url is not None:
        return urlsplit(url).hostname or url
    for word in command:
        plain = PurePath(word).name
        if _PROGRAM.fullmatch(plain) and not _LAUNCHERS.fullmatch(plain):
            return plain.partition("@")[0].removesuffix(".py").removesuffix(".js")
    return command[0] if command else "mcp"
