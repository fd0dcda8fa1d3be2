"""MCP servers: their tools as Python functions, called without an event loop.

A server is opened when it is first asked for something, and again where it has died or the process was
forked; a pickled one is its description. Calls may come from any number of threads. What a server says of its
tools is text of third parties, meant for the model, and results are untrusted as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

from envweave_gym.core.faults import InvalidArgument, ToolError
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.tools.json_values import json_value
from envweave_gym.tools.mcp.json_rpc import Connection, Transport, until
from envweave_gym.tools.mcp.mcp_errors import McpClosed, McpTimeout
from envweave_gym.tools.mcp.server_spec import ServerSpec, spec_of, written_in
from envweave_gym.tools.mcp.tool_schema import BadSchema, ListedTool, listed_tool, result_of
from envweave_gym.tools.names import function_name
from envweave_gym.tools.registry import ToolRegistry
from envweave_gym.tools.tool import Tool

__all__ = ["McpClosed", "McpServer", "McpTimeout", "servers_of", "tools_of"]


class McpServer:
    """One server, by its command or its URL.

    Where it has died between two calls, the next one starts it again. A call that was under way is not made
    again, unless the server says that this does no harm: what it has done is not known.
    """

    def __init__(self, spec: ServerSpec) -> None:
        """``spec`` is what :meth:`of` reads."""
        self.spec = spec
        self._begin()
        in_forked_child(self, McpServer._forget)

    def _begin(self) -> None:
        self._connection: Connection | None = None
        self._opening, self._changing = threading.Lock(), threading.RLock()
        self._closed = 0
        """How often it was closed: what began before that starts no server any more."""

    @classmethod
    def of(
        cls,
        spec: Any,
        *,
        name: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
    ) -> McpServer:
        """The server that a command (``["mcp-server-time"]``), a dict as in ``mcp.json``, or a URL means.

        A call may take ``timeout`` seconds, the start ``connect_timeout``, 30 each. In ``env`` and
        ``headers`` the values ``env:NAME`` and ``file:PATH`` say where a secret is.
        """
        if isinstance(spec, McpServer):
            return spec
        return cls(spec_of(spec, name=name, timeout=timeout, connect_timeout=connect_timeout))

    @property
    def name(self) -> str:
        """Its name, for errors and as a prefix of tool names that clash."""
        return self.spec.name

    def tools(self) -> list[Tool]:
        """Return the tools that it offers now."""
        found = self._with(
            lambda connection: connection.pages("tools/list", "tools", self._until()), repeatable=True
        )
        return [self._tool(entry) for entry in found]

    def _tool(self, entry: Any) -> Tool:
        try:
            listed = listed_tool(entry)
        except BadSchema as error:
            name = entry.get("name") if isinstance(entry, Mapping) else None
            which = f"the tool {name!r}" if isinstance(name, str) and name else "a tool"
            raise InvalidArgument(f"{self.spec} describes {which} badly: {error}") from None
        return Tool(
            name=function_name(listed.name),
            doc=listed.doc,
            parameters=listed.parameters,
            returns=listed.returns,
            call=partial(self._call_listed, listed),
            origin=self.name,
        )

    def _call_listed(self, listed: ListedTool, arguments: Mapping[str, Any]) -> Any:
        """Call a tool by our names; optional arguments that are ``None`` are not sent."""
        optional = {each.name for each in listed.parameters if not each.required}
        sent = {
            listed.originals[name]: value
            for name, value in arguments.items()
            if not (value is None and name in optional)
        }
        return self._call(listed.name, sent, _headers(listed, sent), repeatable=listed.repeatable)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool by the names that the server has for it and its arguments."""
        return self._call(tool, dict(arguments or {}), {}, repeatable=False)

    def _call(
        self, tool: str, arguments: dict[str, Any], headers: dict[str, str], *, repeatable: bool
    ) -> Any:
        params = {"name": tool, "arguments": json_value(arguments)}

        def use(connection: Connection) -> Any:
            mirrored = headers if connection.is_stateless else None
            result = connection.ask("tools/call", params, self._until(), mirrored)
            return result_of(result, f"{self.spec}: {tool}")

        return self._with(use, repeatable=repeatable)

    def _until(self) -> float:
        return until(self.spec.timeout)

    # The connection

    def _with(self, use: Callable[[Connection], Any], *, repeatable: bool) -> Any:
        """Use the connection; once more, with a new one, where the server turns out to have died before."""
        was_open = self._connection is not None
        closed, connection = self._closed, self._open()
        try:
            return self._use(use, connection)
        except McpClosed as error:
            if not was_open or self._closed != closed or not (error.unsent or repeatable):
                raise
        return self._use(use, self._open())

    def _use(self, use: Callable[[Connection], Any], connection: Connection) -> Any:
        """Use the connection, and show no secret in what goes wrong."""
        try:
            return use(connection)
        except ToolError as error:
            if connection.transport.failed or isinstance(error, McpClosed):
                self._drop(connection)
            self._hide_secrets(error)
            raise

    def _hide_secrets(self, error: ToolError) -> None:
        text = str(error)
        for secret in self.spec.secrets():
            text = text.replace(secret, "…")
        error.args = (text,)

    def _open(self) -> Connection:
        """The connection, which is made where there is none."""
        deadline = until(self.spec.connect_timeout)
        if not self._opening.acquire(timeout=self.spec.connect_timeout):
            raise McpTimeout(f"{self.spec} has not been opened in time")
        try:
            return self._connection or self._made(deadline)
        finally:
            self._opening.release()

    def _made(self, deadline: float) -> Connection:
        closed = self._closed
        try:
            made = Connection(str(self.spec), _transport(self.spec), deadline)
        except ToolError as error:
            self._hide_secrets(error)
            raise
        with self._changing:
            if self._closed == closed:
                self._connection = made
                return made
        made.transport.close()
        raise McpClosed(f"{self.spec} was closed while it was opened")

    def _drop(self, connection: Connection) -> None:
        with self._changing:
            if self._connection is connection:
                self._connection = None
        connection.transport.close()

    def _forget(self) -> None:
        connection = self._connection
        self._begin()
        if connection is not None:
            connection.transport.forget()

    def close(self) -> None:
        """End the server if it runs, and calls that are under way; the next call starts it anew."""
        with self._changing:
            self._closed += 1
        if (connection := self._connection) is not None:
            self._drop(connection)

    def fresh(self) -> McpServer:
        """Another one like it that is not open: for an episode of its own."""
        return McpServer(self.spec)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return McpServer, (self.spec,)

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"


def _transport(spec: ServerSpec) -> Transport:
    if spec.url is None:
        from envweave_gym.tools.mcp.stdio import StdioTransport

        return StdioTransport(spec)
    from envweave_gym.tools.mcp.streamable_http import HttpTransport

    return HttpTransport(spec)


def _headers(listed: ListedTool, arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a server wants to see in headers too."""
    headers: dict[str, str] = {}
    for header, path in listed.mirrored.items():
        value: Any = arguments
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        if isinstance(value, str | int):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            headers[f"Mcp-Param-{header}"] = text
    return headers


# Several of them


def servers_of(config: Mapping[str, Any]) -> dict[str, McpServer]:
    """The servers of the content of an ``mcp.json``, ``{"mcpServers": {name: {…}}}``, by name."""
    return {name: McpServer.of(server) for name, server in written_in(config).items()}


def tools_of(servers: Any) -> ToolRegistry:
    """The tools of all servers of a list, of a mapping by name, or of the content of an ``mcp.json``.

    A tool whose name another server has taken is called ``<server>_<tool>``.
    """
    if isinstance(servers, Mapping):
        if "mcpServers" in servers:
            return ToolRegistry(servers_of(servers).values())
        return ToolRegistry(McpServer.of(spec, name=name) for name, spec in servers.items())
    if isinstance(servers, str) or not isinstance(servers, Iterable):
        raise InvalidArgument("tools_of takes a list of servers, or a mapping from their names")
    return ToolRegistry(McpServer.of(spec) for spec in servers)
