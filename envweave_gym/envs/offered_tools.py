"""The tools of an environment: functions, and those of MCP servers, which start when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from envweave_gym.faults import InvalidArgument
from envweave_gym.tools import Tool, ToolError, ToolRegistry


class Call(msgspec.Struct, frozen=True):
    """A call of a tool, and what it gave."""

    name: str
    arguments: dict[str, Any]
    value: Any = None
    error: str | None = None


class RecordedTools(ToolRegistry):
    """Tools whose answers are kept; an episode that is played again has them from there."""

    def __init__(self, tools: Any = ()) -> None:
        super().__init__(tools)
        self.calls: list[Call] = []
        self._known: list[Call] | None = None
        self._taking = threading.Lock()

    def replay(self, calls: Sequence[Call] | None) -> None:
        """Answer from these calls; from now on, with ``None``, as usual."""
        self._known = None if calls is None else list(calls)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, or give what it gave before."""
        if self._known is not None:
            return self._again(name, arguments)
        try:
            value = super().call(name, arguments)
        except ToolError as error:
            self.calls.append(Call(name, arguments, error=str(error)))
            raise
        self.calls.append(Call(name, arguments, value))
        return value

    def _again(self, name: str, arguments: dict[str, Any]) -> Any:
        with self._taking:
            known = self._known or []
            found = next((one for one in known if (one.name, one.arguments) == (name, arguments)), None)
            if found is None:
                raise ToolError(f"{name} was called otherwise when this was played first")
            known.remove(found)
        if found.error is not None:
            raise ToolError(found.error)
        return found.value


class OfferedTools:
    """What an environment was told to offer: functions, registries, and servers as ``mcp.json`` has them."""

    def __init__(self, given: Any = (), *, per_episode: bool = False, taken: Sequence[str] = ()) -> None:
        """With ``per_episode`` every episode has servers of its own; the names in ``taken`` no tool may have.

        What is wrong with functions is said here and now.
        """
        self.given = list(given) if isinstance(given, list | tuple) else [given]
        self.per_episode, self.taken = per_episode, tuple(taken)
        self._started: list[Any] = []
        self._tools: RecordedTools | None = None
        self._check(ToolRegistry([one for one in self.given if not is_server(one)]))

    def begin(self) -> RecordedTools:
        """The tools of a new episode."""
        if self.per_episode:
            self.close()
        return self.now()

    def now(self) -> RecordedTools:
        """The tools; servers start with the first who asks."""
        if self._tools is None:
            tools = RecordedTools()
            try:
                for one in self.given:
                    tools.add(self._of_server(one) if is_server(one) else one)
                self._check(tools)
            except BaseException:
                self.close()  # of several servers some may have started
                raise
            self._tools = tools
        return self._tools

    def _check(self, tools: ToolRegistry) -> None:
        for name in self.taken:
            if name in tools:
                raise InvalidArgument(
                    f"programs have a function {name!r} already; give the tool another name"
                )

    def _of_server(self, server: Any) -> ToolRegistry:
        is_made = hasattr(server, "fresh")
        if is_made and not self.per_episode:
            return ToolRegistry([server])  # which its maker closes
        several = [server.fresh()] if is_made else _servers_of(server)
        self._started += several
        return ToolRegistry(several)

    def again(self) -> OfferedTools:
        """The same for a copy of the environment."""
        return OfferedTools(self.given, per_episode=self.per_episode, taken=self.taken)

    def close(self) -> None:
        """End the servers that were started; they start again when they are needed."""
        started, self._started, self._tools = self._started, [], None
        for server in started:
            server.close()


def is_server(tool: Any) -> bool:
    """Whether this is a server: its URL, its command, an object as in ``mcp.json``, or one that is made."""
    if isinstance(tool, dict):
        return not all(callable(value) for value in tool.values())
    return isinstance(tool, str | list) or hasattr(tool, "fresh")


def _servers_of(spec: Any) -> list[Any]:
    from envweave_gym.tools.mcp import McpServer, servers_of

    return [*servers_of(spec).values()] if "mcpServers" in spec else [McpServer.of(spec)]


def described(tools: ToolRegistry, others: str = "") -> str:
    """What a model is told of the tools, and of ``others`` as such lines; empty where there are none."""
    lines = [f"- {_signature(tool)}: {tool.doc.partition(chr(10))[0]}" for tool in tools]
    lines += filter(None, [others])
    return "\n".join(["There are these functions:", *lines]) if lines else ""


def _signature(tool: Tool) -> str:
    parts = [
        f"{one.name}: {one.type}" + ("" if one.required else f" = {one.default!r}") for one in tool.parameters
    ]
    return f"{tool.name}({', '.join(parts)}) -> {tool.returns}"
