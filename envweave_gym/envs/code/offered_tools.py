"""The tools of an environment: functions, and those of MCP servers, which start when they are needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.sandbox.step import LONGEST_REPLY
from envweave_gym.tools import Tool, ToolError, ToolRegistry
from envweave_gym.tools.mcp.client import McpServer
from envweave_gym.tools.mcp.server_spec import ServerSpec, spec_of, written_in
from envweave_gym.tools.mcp.shared_servers import Share

MOST_CALLED = 64 << 20
"""Bytes of JSON that the arguments and answers of an episode's tool calls may have together: all of them are
kept for copies and told as events."""
_PER_CALL = 256
"""Bytes that the arguments and the answer of a call count in addition."""
_TOO_MUCH = (
    f"the tool calls of an episode may have {MOST_CALLED} bytes of arguments and answers together, which are "
    "used up; send and return less in the next episode"
)
CALLED_OTHERWISE = "was called otherwise when this was played first"
"""What a call is told that is played again and was not made before."""


class Call(msgspec.Struct, frozen=True):
    """A call of a tool, and what it gave."""

    name: str
    arguments: dict[str, Any]
    value: Any = None
    error: str | None = None


class RecordedTools(ToolRegistry):
    """Tools whose answers are kept; an episode that is played again has them from there."""

    def __init__(self, tools: Any = (), left: int = MOST_CALLED) -> None:
        """``left`` are the bytes that calls may still have in this episode."""
        super().__init__(tools)
        self.calls: list[Call] = []
        self._known: list[Call] | None = None
        self._taking = threading.Lock()
        self.left = left

    def begin(self) -> None:
        """Let the calls of a new episode have all the bytes there are for one."""
        self.left = MOST_CALLED

    def replay(self, calls: Sequence[Call] | None) -> None:
        """Answer from these calls; from now on, with ``None``, as usual."""
        self._known = None if calls is None else list(calls)

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Call a tool, or give what it gave before."""
        if self._known is not None:
            return self._again(name, arguments)
        calls = self.calls  # those of this step, though the answer may come in a later one
        self.take(name, arguments)
        try:
            value = super().call(name, arguments)
            if (size := _size(value)) > LONGEST_REPLY:  # no program gets it, so it is not kept either
                raise ToolError(f"{name} gave {size} bytes, and a program takes {LONGEST_REPLY}")
            self.take(name, value)
        except ToolError as error:
            calls.append(Call(name, arguments, error=str(error)))
            raise
        calls.append(Call(name, arguments, value))
        return value

    def take(self, name: str, value: Any) -> None:
        """Take what arguments or an answer need of the episode's bytes; ``ToolError`` if fewer are left."""
        size = _PER_CALL + _size(value)
        with self._taking:
            if size <= self.left:
                self.left -= size
                return
            self.left = 0  # so that a program that is played again is refused the same calls
        raise ToolError(f"{name}: {_TOO_MUCH}")

    def _again(self, name: str, arguments: dict[str, Any]) -> Any:
        with self._taking:
            known = self._known or []
            found = next((one for one in known if (one.name, one.arguments) == (name, arguments)), None)
            if found is None:
                raise ToolError(f"{name}: {_TOO_MUCH}" if self.left == 0 else f"{name} {CALLED_OTHERWISE}")
            known.remove(found)
        if found.error is not None:
            raise ToolError(found.error)
        return found.value


def _size(value: Any) -> int:
    """How many bytes of JSON a value has; none where it is no JSON, and so will be no answer either."""
    try:
        return len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        return 0


class OfferedTools:
    """What an environment was told to offer: functions, registries, and servers as ``mcp.json`` has them."""

    def __init__(
        self,
        given: Any = (),
        *,
        per_episode: bool = False,
        taken: Sequence[str] = (),
        left: int = MOST_CALLED,
    ) -> None:
        """The names in ``taken`` no tool may have; ``left`` are the bytes that calls may still have.

        Environments of a process share the servers they describe alike; with ``per_episode`` every episode
        has its own. What is wrong with functions and descriptions is said here and now.
        """
        self._given = [each for one in _several(given) for each in _read(one)]
        self._per_episode, self._taken = per_episode, tuple(taken)
        self._started: list[McpServer | Share] = []
        self._tools: RecordedTools | None = None
        self._left = left
        self._check(ToolRegistry([one for one in self._given if not isinstance(one, McpServer | ServerSpec)]))

    def begin(self) -> RecordedTools:
        """The tools of a new episode."""
        if self._per_episode:
            self.close()
        tools = self.now()
        tools.begin()
        return tools

    def now(self) -> RecordedTools:
        """The tools; servers start with the first who asks."""
        if self._tools is None:
            tools = RecordedTools(left=self._left)
            try:
                for one in self._given:
                    tools.add(self._started_of(one) if isinstance(one, McpServer | ServerSpec) else one)
                self._check(tools)
            except BaseException:
                self.close()  # of several servers some may have started
                raise
            self._tools = tools
        return self._tools

    def _check(self, tools: ToolRegistry) -> None:
        for name in self._taken:
            if name in tools:
                raise InvalidArgument(
                    f"programs have a function {name!r} already; give the tool another name"
                )

    def _started_of(self, server: McpServer | ServerSpec) -> McpServer:
        """The server that is meant, which :meth:`close` ends unless somebody else has made it."""
        if self._per_episode:
            started = McpServer(server) if isinstance(server, ServerSpec) else server.fresh()
            self._started.append(started)
            return started
        if isinstance(server, McpServer):
            return server
        share = Share(server)
        self._started.append(share)
        return share.server

    def again(self) -> OfferedTools:
        """The same for a copy of the environment."""
        more: dict[str, Any] = {"per_episode": self._per_episode, "taken": self._taken}
        return OfferedTools(self._given, **more, left=self.left())

    def left(self) -> int:
        """The bytes that calls may still have in this episode."""
        return self._left if self._tools is None else self._tools.left

    def close(self) -> None:
        """End the servers that were started; they start again when they are needed."""
        self._left = self.left()
        started, self._started, self._tools = self._started, [], None
        for server in started:
            server.close()


def _several(given: Any) -> list[Any]:
    """What was given as one or as several; texts of which the first is no URL are the command of a server."""
    if given is None:
        return []
    if not isinstance(given, list | tuple):
        return [given]
    texts = [one for one in given if isinstance(one, str)]
    is_command = texts and len(texts) == len(given) and "://" not in texts[0]
    return [list(given)] if is_command else list(given)


def _read(one: Any) -> list[Any]:
    """What was given, with the descriptions of servers read and checked."""
    is_description = isinstance(one, dict) and not all(callable(value) for value in one.values())
    if not is_description and not isinstance(one, str | list | tuple):
        return [one]
    described = written_in(one).values() if isinstance(one, dict) and "mcpServers" in one else [one]
    return [spec_of(each) for each in described]


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
