"""OpenEnv's form of MCP: ``tools/list`` and ``tools/call`` as JSON-RPC, as messages of a WebSocket, and as actions.

It is not the protocol of MCP's own clients, which begin with ``initialize``; those play :mod:`protocols.mcp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from envweave_gym.core.faults import EnvweaveError, InvalidAction, shown
from envweave_gym.core.schema_of_space import object_schema
from envweave_gym.wire.messages import Create
from envweave_gym_server.core.errors import NoSession
from envweave_gym_server.protocols.json_calls import action_from_json
from envweave_gym_server.protocols.json_rpc import (
    INVALID_PARAMS,
    Json,
    Method,
    RpcError,
    Tool,
    arguments_of,
    tool_of,
)
from envweave_gym_server.protocols.openenv.families import Family, text_member
from envweave_gym_server.protocols.openenv.played_session import (
    PlayedSession,
    close_played,
    find_played,
    name_of,
    open_played,
)
from envweave_gym_server.protocols.openenv.socket_messages import (
    VALIDATION_ERROR,
    error_of,
    error_of_creation,
)
from envweave_gym_server.protocols.openenv.typed_families import EchoFamily, family_of
from envweave_gym_server.sessions.service import SessionService
from envweave_gym_server.sessions.session import Left

LIST_TOOLS, CALL_TOOL = "list_tools", "call_tool"
"""Values of ``type`` in the data of a step that lists or calls tools."""
_FAILED = -32000
"""Code of JSON-RPC for errors of the server's own; their data have OpenEnv's code."""


class ToolOutcome(NamedTuple):
    """Result of a tool, and of the step in which it was called."""

    value: Any
    step: Json


class OpenEnvTools:
    """The tools of one ID, for JSON-RPC requests with and without a session."""

    def __init__(
        self, service: SessionService, name: str, left: Left, own: PlayedSession | None = None
    ) -> None:
        """``own`` is the session of the WebSocket over which requests come."""
        self._service, self._name, self._left, self._own = service, name, left, own
        self.methods: Mapping[str, Method] = {
            "tools/list": self._list,
            "tools/call": self._call,
            "openenv/session/create": self._create,
            "openenv/session/close": self._close,
        }

    def _session_in(self, params: Json) -> PlayedSession | None:
        """Return the session that a request names, or that of its WebSocket; ``None`` if there is neither."""
        given = params.get("session_id")
        if given is None or (self._own is not None and given == name_of(self._own)):
            return self._own
        if not isinstance(given, str):
            raise RpcError(INVALID_PARAMS, f"session_id {shown(given)} is no text")
        try:
            return find_played(self._service, self._name, given)
        except NoSession as error:
            raise RpcError(INVALID_PARAMS, f"Unknown session_id: {shown(given)}; {error}") from None

    def _list(self, params: Json) -> Json:
        played = self._session_in(params)
        family = described_family(self._service, self._name) if played is None else played.family
        return {"tools": [tool.listed() for tool in tools_of(family, played, self._left).values()]}

    def _call(self, params: Json) -> Json:
        played = self._session_in(params)
        if played is not None:
            return self._called(played, params)
        played = self._opened()
        try:
            return self._called(played, params)
        finally:
            close_played(self._service, played.session)

    def _called(self, played: PlayedSession, params: Json) -> Json:
        tool = tool_of(tools_of(played.family, played, self._left), params.get("name"))
        arguments = arguments_of(params)
        try:
            played.begin(self._left)
            return result_of_call(tool.call(arguments))
        except EnvweaveError as error:  # others are bugs of the server, which are logged
            about = error_of(error)
            code = INVALID_PARAMS if about.code == VALIDATION_ERROR else _FAILED
            raise RpcError(code, str(about), {"code": about.code}) from None

    def _create(self, params: Json) -> Json:
        return {"session_id": name_of(self._own or self._opened())}

    def _opened(self) -> PlayedSession:
        server = self._service
        try:
            return open_played(server, self._name, None, self._left)
        except Exception as error:  # noqa: BLE001 - the client learns of everything that happens
            about = error_of_creation(error, self._name, len(server.sessions), server.settings.max_sessions)
            raise RpcError(_FAILED, str(about), {"code": about.code, **about.more}) from None

    def _close(self, params: Json) -> Json:
        given = params.get("session_id")
        if given is None:
            raise RpcError(INVALID_PARAMS, "Invalid params - 'session_id' is required")
        played = self._session_in(params)
        if played is None or played is self._own:
            raise RpcError(INVALID_PARAMS, "a WebSocket closes its session itself: send {'type': 'close'}")
        close_played(self._service, played.session)
        return {"session_id": given, "closed": True}


def described_family(service: SessionService, name: str) -> Family:
    """Return the family of an ID, with the description of an environment that is made for it and closed."""
    offer = service.offers.find(name)
    kind = family_of(offer.target)
    return kind(service.description(Create(offer.name, "", {**offer.trial, **kind.kwargs})))


def result_of_call(outcome: ToolOutcome) -> Json:
    """Return the result of ``tools/call``."""
    text = outcome.value if isinstance(outcome.value, str) else msgspec.json.encode(outcome.value).decode()
    return {
        "content": [{"type": "text", "text": text}],
        "structured_content": {"result": outcome.value},
        "data": outcome.value,
        "is_error": False,
    }


def step_with_tools(played: PlayedSession, data: Json, left: Left) -> Json:
    """Take a step whose action lists or calls tools; the result has OpenEnv's observation of that."""
    tools = tools_of(played.family, played, left)
    if data["type"] == LIST_TOOLS:
        listed = [tool.listed("input_schema") for tool in tools.values()]
        return {
            "observation": {"tools": listed, "metadata": {}},
            "reward": None,
            "done": False,
            "metadata": {},
        }
    name, arguments = data.get("tool_name"), data.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise InvalidAction("an action of type call_tool has tool_name, a text, and arguments, an object")
    if name not in tools:
        return _failed(
            name, "tool_not_found", f"there is no tool {shown(name)}; there are {', '.join(tools)}"
        )
    try:
        played.begin(left)
        outcome: ToolOutcome = tools[name].call(arguments)
    except InvalidAction as error:
        return _failed(name, "invalid_args", str(error_of(error)))
    observation = {"tool_name": name, "result": result_of_call(outcome), "error": None}
    metadata = outcome.step["metadata"]
    return {**outcome.step, "observation": {**observation, "metadata": metadata}}


def _failed(name: str, kind: str, text: str) -> Json:
    error = {"error_type": kind, "message": text}
    observation = {"tool_name": name, "result": None, "error": error, "metadata": {}}
    return {"observation": observation, "reward": None, "done": False, "metadata": {}}


def is_about_tools(data: Json) -> bool:
    """Return whether the data of a step list or call tools, instead of being an action."""
    return data.get("type") in (LIST_TOOLS, CALL_TOOL)


def tools_of(family: Family, played: PlayedSession | None, left: Left) -> dict[str, Tool]:
    """Return the tools of an environment by name; without a session they can be listed only."""
    tools = _echo_tools(played, left) if isinstance(family, EchoFamily) else [_act_tool(family, played, left)]
    return {tool.name: tool for tool in tools}


def _act_tool(family: Family, played: PlayedSession | None, left: Left) -> Tool:
    schema = family.action_schema()
    members = {name: part for name, part in schema["properties"].items() if name != "metadata"}

    def act(arguments: Json) -> ToolOutcome:
        assert played is not None
        stepped = played.step(arguments, left)
        seen = {name: value for name, value in stepped["observation"].items() if name != "metadata"}
        return ToolOutcome(
            {"observation": seen, "reward": stepped["reward"], "done": stepped["done"]}, stepped
        )

    about = "Take one step in the environment; returns the observation, the reward, and whether the episode is over."
    return Tool("act", about, {**schema, "properties": members}, act)


def _echo_tools(played: PlayedSession | None, left: Left) -> list[Tool]:
    schema = object_schema({"message": {"type": "string"}})

    def echo(arguments: Json, *, with_length: bool) -> ToolOutcome:
        assert played is not None
        message = text_member(arguments, "message")
        stepped = played.step_with(action_from_json(played.session, message, left), left)
        said = stepped["observation"]["echoed_message"]
        return ToolOutcome({"message": said, "length": len(said)} if with_length else said, stepped)

    plain, with_length = partial(echo, with_length=False), partial(echo, with_length=True)
    return [
        Tool("echo_message", "Echo back the provided message.", schema, plain),
        Tool("echo_with_length", "Echo back the message with its length.", schema, with_length),
    ]
