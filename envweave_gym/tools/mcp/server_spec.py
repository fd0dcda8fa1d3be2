"""Which MCP server is meant: a command or a URL, as people write it down."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from envweave_gym.core.arguments import check_deadline
from envweave_gym.core.faults import InvalidArgument, nearest, shown

_KEYS = ("name", "command", "args", "env", "cwd", "url", "headers", "timeout", "connect_timeout")
_OF_OTHERS = ("type", "transport", "disabled", "autoApprove", "alwaysAllow", "description")
"""What other programs write into the same files, and what says nothing here."""
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE"),
    "LD_LIBRARY_PATH",
)
"""The environment variables that a server gets from this process."""
_REFERENCE = re.compile(r"(?P<before>(?:Bearer |Basic |Token )?)(?P<kind>env|file):(?P<where>.+)")
_PROGRAM = re.compile(r"[\w.][\w.@+-]*")
_LAUNCHERS = re.compile(r"npx|uvx|uv|node|bunx?|deno|docker|podman|python[\d.]*")


@dataclass(frozen=True)
class ServerSpec:
    """A server as it was asked for. Secrets are references, resolved when the server is opened."""

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
        foreign = ("env", "cwd") if self.url is not None else ("headers",)
        for which in foreign:
            if getattr(self, which):
                raise InvalidArgument(f"{self}: {which}= is not for a server {_reached(self)}")

    def __str__(self) -> str:
        return f"MCP server {self.name!r}"

    def key(self) -> tuple[object, ...]:
        """What tells it from other servers, and can be looked up."""
        rest = self.cwd, self.timeout, self.connect_timeout
        return self.name, self.command, self.url, *map(_pairs, (self.env, self.headers)), *rest

    def environment(self) -> dict[str, str]:
        """All environment variables of the server's process."""
        inherited = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        return inherited | {key: self._resolved(value) for key, value in self.env.items()}

    def resolved_headers(self) -> dict[str, str]:
        """The headers of every request to the server."""
        found = {key: self._resolved(value) for key, value in self.headers.items()}
        for key, value in found.items():
            if not (value.isascii() and value.isprintable()):
                raise InvalidArgument(f"{self}: the header {key} is not one line of ASCII characters")
        return found

    def secrets(self) -> list[str]:
        """The values that no error may show, but for those that are too short to be secret."""
        given = [value for value in (*self.env.values(), *self.headers.values()) if _is_resolvable(value)]
        found = [(value, self._resolved(value).split(" ")[-1]) for value in given]
        return [secret for value, secret in found if len(secret) >= (8 if value.endswith(secret) else 4)]

    def _resolved(self, value: str) -> str:
        """The value, or what the reference ``env:NAME`` or ``file:PATH`` names."""
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            return value
        where = reference["where"]
        try:
            secret = os.environ[where] if reference["kind"] == "env" else Path(where).read_text("utf-8")
        except (KeyError, OSError, ValueError) as error:
            raise InvalidArgument(f"{self}: there is nothing in {value}: {type(error).__name__}") from None
        return reference["before"] + secret.strip()


def _pairs(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(texts.items()))


def _is_resolvable(value: str) -> bool:
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        return True
    where = reference["where"]
    return where in os.environ if reference["kind"] == "env" else Path(where).is_file()


def _reached(spec: ServerSpec) -> str:
    return "with a url" if spec.url is not None else "with a command"


# Reading it


def spec_of(given: Any, **options: Any) -> ServerSpec:
    """The server that a command as list, a dict as in ``mcp.json``, or a URL means.

    ``options`` are ``name``, ``timeout`` and ``connect_timeout``, where they are not ``None``.
    """
    if isinstance(given, str):
        given = {"url": given}
    elif isinstance(given, list | tuple):
        given = {"command": given}
    elif not isinstance(given, Mapping):
        raise InvalidArgument(
            f"MCP server: {shown(given)} is none; give a command as list, a dict as in mcp.json, or a URL"
        )
    written = {**given, **{key: value for key, value in options.items() if value is not None}}
    for key in written:
        if key not in _KEYS:
            hint = nearest(key, _KEYS) if isinstance(key, str) else ""
            raise InvalidArgument(f"MCP server: there is no {shown(key)}{hint}; it has {', '.join(_KEYS)}")
    command, url = _command(written), _url(written.get("url"))
    fields = {"command": command, "url": url, "env": _texts(written, "env")}
    fields |= {"headers": _texts(written, "headers"), "cwd": _folder(written.get("cwd"))}
    kept = {key: written[key] for key in ("timeout", "connect_timeout") if key in written}
    return ServerSpec(written.get("name", _name_of(command, url)), **fields, **kept)


def written_in(config: Any) -> dict[str, dict[str, Any]]:
    """The servers of the content of an ``mcp.json``, by name, but for those that it disables."""
    servers = config.get("mcpServers") if isinstance(config, Mapping) else None
    if not isinstance(servers, Mapping) or not all(isinstance(each, Mapping) for each in servers.values()):
        raise InvalidArgument(f'MCP servers: {shown(config)} is not like {{"mcpServers": {{name: {{…}}}}}}')
    for name, server in servers.items():
        kind = server.get("type", server.get("transport", "stdio"))
        if kind not in ("stdio", "http", "streamable-http", "streamableHttp", "streamable_http"):
            raise InvalidArgument(
                f"MCP server {name!r}: type {shown(kind)} is unknown; there are stdio and http"
            )
    return {
        name: {"name": name, **{key: value for key, value in server.items() if key not in _OF_OTHERS}}
        for name, server in servers.items()
        if not server.get("disabled")
    }


def _command(written: Mapping[str, Any]) -> tuple[str, ...]:
    command, arguments = written.get("command", []), written.get("args", [])
    words = [command] if isinstance(command, str) else command
    for word in (words, arguments):
        if not isinstance(word, list | tuple):
            raise InvalidArgument(f"MCP server: {shown(word)} is no command; give a list of texts")
    full = [str(word) if isinstance(word, PurePath) else word for word in (*words, *arguments)]
    wrong = [word for word in full if not isinstance(word, str) or "\0" in word]
    if wrong or (full and not full[0]):
        raise InvalidArgument(
            f"MCP server: its command has {shown((wrong or full)[0])}, which is no word of one"
        )
    return tuple(full)


def _url(url: Any) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        usable = (
            parts is not None and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        )
    except ValueError:
        parts, usable = None, False
    if parts is None or not usable:
        raise InvalidArgument(
            f"MCP server: {shown(url)} is not a URL like 'http://host:port/mcp'; give a command as a list"
        )
    if parts.username or parts.password:
        raise InvalidArgument(
            "MCP server: its URL holds a secret; give headers={'Authorization': 'env:NAME'}"
        )
    return url


def _texts(written: Mapping[str, Any], which: str) -> dict[str, str]:
    given = written.get(which) or {}
    if not isinstance(given, Mapping):
        raise InvalidArgument(f"MCP server: {which} is not a dict of texts, but a {type(given).__name__}")
    for key, value in given.items():
        if not (isinstance(key, str) and isinstance(value, str)) or not key or "\0" in key + value:
            raise InvalidArgument(f"MCP server: {which}[{shown(key)}] is not a text")
    return dict(given)


def _folder(cwd: Any) -> str | None:
    if cwd is None or isinstance(cwd, str):
        return cwd
    if isinstance(cwd, PurePath):
        return str(cwd)
    raise InvalidArgument(f"MCP server: cwd={shown(cwd)} is not the path of a folder")


def _name_of(command: tuple[str, ...], url: str | None) -> str:
    """What a server is called that has no name: its program, or its host."""
    if url is not None:
        return urlsplit(url).hostname or url
    for word in command:
        plain = PurePath(word).name
        if _PROGRAM.fullmatch(plain) and not _LAUNCHERS.fullmatch(plain):
            return plain.partition("@")[0].removesuffix(".py").removesuffix(".js")
    return command[0] if command else "mcp"
