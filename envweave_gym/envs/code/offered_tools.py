"""The tools that a user gives to an environment: functions, registries, and MCP servers that start on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.os_support.shared_values import Share, SharedValues
from envweave_gym.tools import Tool, ToolRegistry
from envweave_gym.tools.mcp.client import McpServer
from envweave_gym.tools.mcp.server_spec import ServerSpec, spec_of, specs_in

_servers = SharedValues[McpServer]()


class OfferedTools:
    """Builds the tool registry of an environment when its first episode begins, and starts the MCP servers in it.

    Equal descriptions of MCP servers share one server in this process; with ``per_episode`` each episode starts its
    own. The constructor refuses invalid functions and descriptions.
    """

    def __init__(self, given: Any = (), *, per_episode: bool = False, taken: Sequence[str] = ()) -> None:
        """Check the given tools without starting servers; ``taken`` are names that no tool may have."""
        self._given = [each for one in _several(given) for each in _read(one)]
        self._per_episode, self._taken = per_episode, tuple(taken)
        self._started: list[McpServer | Share[McpServer]] = []
        self._registry: ToolRegistry | None = None
        # functions are checked now; servers start with the first episode, and their tools are checked then
        self._check(ToolRegistry([one for one in self._given if not isinstance(one, McpServer | ServerSpec)]))

    def begin(self) -> ToolRegistry:
        """Return the registry for a new episode; with ``per_episode``, the MCP servers are started anew."""
        if self._per_episode:
            self.close()
        return self.registry()

    def registry(self) -> ToolRegistry:
        """Return the registry of all tools; the first call builds it and starts the servers."""
        if self._registry is None:
            registry = ToolRegistry()
            try:
                for one in self._given:
                    registry.add(self._started_of(one) if isinstance(one, McpServer | ServerSpec) else one)
                self._check(registry)
            except BaseException:
                self.close()  # some servers may have started
                raise
            self._registry = registry
        return self._registry

    def _check(self, tools: ToolRegistry) -> None:
        for name in self._taken:
            if name in tools:
                raise InvalidArgument(
                    f"programs have a function {name!r} already; give the tool another name"
                )

    def _started_of(self, server: McpServer | ServerSpec) -> McpServer:
        """Start or share a server and return it; :meth:`close` ends it, unless the user gave a running one."""
        if self._per_episode:
            started = McpServer(server) if isinstance(server, ServerSpec) else server.fresh()
            self._started.append(started)
            return started
        if isinstance(server, McpServer):
            return server
        share = _servers.take(server.key(), lambda: McpServer(server))
        self._started.append(share)
        return share.value

    def copy(self) -> OfferedTools:
        """Return a new ``OfferedTools`` with the same tools, for a copy of the environment; start no server."""
        return OfferedTools(self._given, per_episode=self._per_episode, taken=self._taken)

    def close(self) -> None:
        """End the servers that this object started; the next episode starts them again."""
        started, self._started, self._registry = self._started, [], None
        for server in started:
            server.close()


def _several(given: Any) -> list[Any]:
    """Return one or several tools as a list; a list of strings is one server's command, unless it begins with a URL."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        return [given]
    texts = [one for one in given if isinstance(one, str)]
    is_command = texts and len(texts) == len(given) and "://" not in texts[0]
    return [list(given)] if is_command else list(given)


def _read(one: Any) -> list[Any]:
    """Parse a description of MCP servers into their specs; return anything else unchanged, in a list."""
    is_description = isinstance(one, dict) and not all(callable(value) for value in one.values())
    if not is_description and not isinstance(one, str | list | tuple):
        return [one]
    return specs_in(one) if isinstance(one, dict) and "mcpServers" in one else [spec_of(one)]


def described(tools: ToolRegistry, others: str = "") -> str:
    """Return the part of a prompt that lists the tools, and then the text ``others``; ``""`` if there are no tools."""
    lines = [f"- {_signature(tool)}: {tool.doc.partition(chr(10))[0]}" for tool in tools]
    lines += filter(None, [others])
    return "\n".join(["There are these functions:", *lines]) if lines else ""


def _signature(tool: Tool) -> str:
    parts = [
        f"{one.name}: {one.type}" + ("" if one.required else f" = {one.default!r}") for one in tool.parameters
    ]
    return f"{tool.name}({', '.join(parts)}) -> {tool.returns}"
