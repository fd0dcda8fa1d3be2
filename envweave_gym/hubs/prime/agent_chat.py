"""The chat of a program with one of its agents: observations, and events of the messages that are new."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

from envweave_gym.episode.message import message
from envweave_gym.episode.stream import Event

Chat = list[dict[str, Any]]


class AgentChat:
    """Messages of one agent's calls; the program sends the whole chat with each call."""

    def __init__(self, agent: str | None = None) -> None:
        """``agent`` is the only one that may see the events; ``None`` if there is no other."""
        self._to = None if agent is None else (agent,)
        self.messages: Chat = []
        self.tools: Chat = []
        self.sampling: dict[str, Any] = {}

    def observation(self) -> Chat:
        """Return a copy of the messages, as an observation."""
        return copy.deepcopy(self.messages)

    def info(self) -> dict[str, Any]:
        """Return the tools and other parameters of the last call."""
        return {"tools": copy.deepcopy(self.tools), "sampling": copy.deepcopy(self.sampling)}

    def append_reply(self, reply: dict[str, Any]) -> None:
        """Add the agent's own reply to the chat."""
        self.messages = [*self.messages, reply]

    def update(self, messages: Chat, tools: Chat, sampling: dict[str, Any]) -> list[Event]:
        """Store the messages of a call; return message events for the new ones, or for all if the chat starts anew."""
        before, self.messages = self.messages, messages
        self.tools, self.sampling = tools, sampling
        is_longer = len(messages) >= len(before) and all(map(_is_same, before, messages))
        new = messages[len(before) :] if is_longer and before else messages
        return [
            _event(one, self._to, replace=not is_longer and position == 0) for position, one in enumerate(new)
        ]


def _event(one: dict[str, Any], to: tuple[str, ...] | None, *, replace: bool) -> Event:
    calls = one.get("tool_calls") or None
    content = one.get("content")
    if content is None and not calls:
        content = ""
    return message(
        str(one.get("role", "user")),
        content,
        to=to,
        replace=replace,
        tool_calls=calls,
        tool_call_id=one.get("tool_call_id"),
        name=one.get("name"),
    )


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two messages say the same; libraries write a reply in a form of their own."""
    return (
        one.get("role") == other.get("role")
        and (one.get("content") or "") == (other.get("content") or "")
        and _calls(one) == _calls(other)
    )


def _calls(one: dict[str, Any]) -> list[Any]:
    calls = one.get("tool_calls") or []
    return [_call(call) for call in calls] if isinstance(calls, list) else [calls]


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return call.get("id"), function.get("name"), arguments


def as_text(messages: Chat) -> str:
    """Return messages as text for people."""
    return "\n\n".join(f"[{one.get('role')}]\n{_content(one)}" for one in messages)


def _content(one: dict[str, Any]) -> str:
    content = one.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content)
    calls = one.get("tool_calls")
    return "\n".join(filter(None, [text, json.dumps(calls) if calls else ""]))
