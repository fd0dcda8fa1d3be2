"""The reply of an agent that plays the model, text and tool calls: as an action, and in a real model's text."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.typed.json_space import JsonOf

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call of a tool; the endpoint makes an ID where none is given."""

    name: str
    arguments: dict[str, Any] | str = {}
    """The arguments as an object, or as the text of one; a text is sent as it is."""
    id: str | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One reply of the model; an empty reply is an empty text."""

    content: str | None = None
    tool_calls: list[ToolCall] = []
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None = None
    """Why the model stopped; by default ``tool_calls`` if there are any, else ``stop``."""
    usage: dict[str, int] | None = None
    """Token counts, ``prompt_tokens`` and ``completion_tokens``; without them the program gets none."""

    @property
    def finished_by(self) -> str:
        """The finish reason that the program gets."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    def wire_calls(self, number: int) -> list[dict[str, Any]]:
        """Return the tool calls in the form of a chat API; a missing ID is ``call_{number}_{i}``."""
        return [
            {
                "id": call.id or f"call_{number}_{i}",
                "type": "function",
                "function": {"name": call.name, "arguments": _text_of(call.arguments)},
            }
            for i, call in enumerate(self.tool_calls)
        ]


def reply_space() -> JsonOf:
    """Return the space of replies: a text, or an object with the fields of :class:`Reply`."""
    return JsonOf(str | Reply, None)


def reply_of(action: Any) -> Reply:
    """Convert an action, which is a member of :func:`reply_space`, to a reply."""
    return Reply(content=action) if isinstance(action, str) else msgspec.convert(action, Reply)


def parse_reply(text: str, tools: list[dict[str, Any]]) -> Any:
    """Return the action that a model's raw reply means; raise ``InvalidAction`` for a broken tool call.

    Calls in ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` are read if tools are offered. All other text is
    the reply itself.
    """
    if not isinstance(text, str):
        raise InvalidAction(f"{shown(text)} is not a text; give the model's reply as one")
    found = _TOOL_CALL.findall(text) if tools else []
    if not found:
        return text
    calls: list[dict[str, Any]] = []
    for one in found:
        try:
            calls.append(msgspec.to_builtins(msgspec.convert(json.loads(one), ToolCall)))
        except (ValueError, RecursionError):
            form = '<tool_call>{"name": "…", "arguments": {…}}</tool_call>'
            raise InvalidAction(f"{shown(one)} is not a tool call; write it like {form}") from None
    content = _TOOL_CALL.sub("", text).strip()
    return {**({"content": content} if content else {}), "tool_calls": calls}


def _text_of(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
