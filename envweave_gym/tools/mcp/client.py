"""The class ``McpServer``, a synchronous client for an MCP server whose tools become Python functions.

A server is started or connected on first use, and again after it has died or this process was forked.
Descriptions and results come from third parties and are not trusted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

from envweave_gym.core.faults import InvalidArgument, ToolError
from envweave_gym.os_support.process_local import in_forked_child
from envweave_gym.tools.json_values import json_value
from envweave_gym.tools.mcp.mcp_session import McpClosed, McpSession, McpTimeout, Transport
from envweave_gym.tools.mcp.server_spec import ServerSpec, spec_of, specs_in
from envweave_gym.tools.mcp.tool_schema import BadSchema, ListedTool, listed_tool, result_of
from envweave_gym.tools.registry import ToolRegistry
from envweave_gym.tools.tool import Tool, function_name

__all__ = ["McpClosed", "McpServer", "McpTimeout", "servers_of", "tools_of"]


class McpServer:
    """Thread-safe client for one MCP server, given by its command or its URL; a pickle holds this description.

    If the server has died between two calls, the next call starts it again. A call during which it dies is repeated
    only if the server declares the tool read-only or idempotent, as the call may have had effects.
    """

    def __init__(self, spec: ServerSpec) -> None:
        """Make a client from a checked description; :meth:`of` takes commands, dicts and URLs."""
        self.spec = spec
        self._begin()
        in_forked_child(self, McpServer._forget)

    def _begin(self) -> None:
        self._session: McpSession | None = None
        self._opening, self._changing = threading.Lock(), threading.RLock()
        self._close_count = 0
        """Number of :meth:`close` calls; a tool call that began before one of them does not open the server again."""

    @classmethod
    def of(
        cls,
        spec: Any,
        *,
        name: str | None = None,
        timeout: float | None = None,
        connect_timeout: float | None = None,
    ) -> McpServer:
        """Make a client from a command (``["mcp-server-time"]``), a dict as in ``mcp.json``, or a URL.

        ``timeout`` limits a call and ``connect_timeout`` the start, in seconds; both default to 30. Values of
        ``env`` and ``headers`` in the dict may refer to a secret by ``env:NAME`` or ``file:PATH``. Raise
        ``InvalidArgument`` for anything else.
        """
        if isinstance(spec, McpServer):
            return spec
        return cls(spec_of(spec, name=name, timeout=timeout, connect_timeout=connect_timeout))

    @property
    def name(self) -> str:
        """The name of the server in errors, and the prefix of its tools whose names are taken."""
        return self.spec.name

    @property
    def is_open(self) -> bool:
        """Whether the server is started or connected now."""
        return self._session is not None

    def tools(self) -> list[Tool]:
        """Request the list of the server's tools; open the server if it is not open."""
        found = self._with_session(
            lambda session: session.pages("tools/list", "tools", self._deadline()), repeatable=True
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
        sent = listed.original_arguments(arguments)
        return self._call(listed.name, sent, listed.headers_for(sent), repeatable=listed.repeatable)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool and return its result; the names of the tool and of arguments are those of the server.

        Raise :class:`McpTimeout` after ``timeout`` seconds, and ``ToolError`` if the tool fails.
        """
        return self._call(tool, dict(arguments or {}), {}, repeatable=False)

    def _call(
        self, tool: str, arguments: dict[str, Any], headers: dict[str, str], *, repeatable: bool
    ) -> Any:
        params = {"name": tool, "arguments": json_value(arguments)}

        def use(session: McpSession) -> Any:
            extra = headers if session.is_stateless else None
            result = session.ask("tools/call", params, self._deadline(), extra)
            return result_of(result, f"{self.spec}: {tool}")

        return self._with_session(use, repeatable=repeatable)

    def _deadline(self) -> float:
        return time.monotonic() + self.spec.timeout

    # The session

    def _with_session(self, use: Callable[[McpSession], Any], *, repeatable: bool) -> Any:
        """Call ``use`` with the session; if the server had died, call it once more with a new session.

        ``repeatable`` allows that also if the server may have executed the request.
        """
        was_open, close_count = self._session is not None, self._close_count
        try:
            return self._use(use)
        except McpClosed as error:
            # A session that this call has opened cannot have been dead before, so it is not tried again.
            is_safe = error.unsent or repeatable
            if not was_open or self._close_count != close_count or not is_safe:
                raise
        return self._use(use)

    def _use(self, use: Callable[[McpSession], Any]) -> Any:
        """Call ``use`` with the session, hide secrets in its errors, and drop the session if it has failed."""
        session = None
        try:
            session = self._open()
            return use(session)
        except ToolError as error:
            if session is not None and (session.transport.failed or isinstance(error, McpClosed)):
                self._drop(session)
            text = str(error)
            for secret in self.spec.secrets():
                text = text.replace(secret, "…")
            error.args = (text,)
            raise

    def _open(self) -> McpSession:
        """Return the open session, or open one; a thread that waits for another to open it has its own deadline."""
        if (session := self._session) is not None:
            return session
        deadline = time.monotonic() + self.spec.connect_timeout
        if not self._opening.acquire(timeout=self.spec.connect_timeout):
            raise McpTimeout(f"{self.spec} has not been opened in time")
        try:
            return self._session or self._opened(deadline)
        finally:
            self._opening.release()

    def _opened(self, deadline: float) -> McpSession:
        # Without the lock: the handshake takes seconds, and close() must not wait for it.
        close_count = self._close_count
        session = McpSession(str(self.spec), _transport(self.spec), deadline)
        with self._changing:
            if self._close_count == close_count:
                self._session = session
                return session
        session.transport.close()
        raise McpClosed(f"{self.spec} was closed while it was opened")

    def _drop(self, session: McpSession) -> None:
        with self._changing:
            if self._session is session:
                self._session = None
        session.transport.close()

    def _forget(self) -> None:
        """In a forked process: leave the session to the parent, and replace the locks."""
        session = self._session
        self._begin()
        if session is not None:
            session.transport.forget()

    def close(self) -> None:
        """End the server or the connection, and calls in progress; the next call opens it again."""
        with self._changing:
            self._close_count += 1
        if (session := self._session) is not None:
            self._drop(session)

    def fresh(self) -> McpServer:
        """Return a new client with the same description, which is not open."""
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


def servers_of(config: Mapping[str, Any]) -> dict[str, McpServer]:
    """Make a client for each server in the content of an ``mcp.json``, ``{"mcpServers": {name: {…}}}``, by name."""
    return {spec.name: McpServer(spec) for spec in specs_in(config)}


def tools_of(servers: Any) -> ToolRegistry:
    """Open servers and return a registry of their tools.

    ``servers`` is a list, a mapping by name, or the content of an ``mcp.json``. A tool whose name another server has
    taken is called ``<server>_<tool>``.
    """
    if isinstance(servers, Mapping):
        if "mcpServers" in servers:
            return ToolRegistry(servers_of(servers).values())
        return ToolRegistry(McpServer.of(spec, name=name) for name, spec in servers.items())
    if isinstance(servers, str) or not isinstance(servers, Iterable):
        raise InvalidArgument("tools_of takes a list of servers, or a mapping from their names")
    return ToolRegistry(McpServer.of(spec) for spec in servers)
