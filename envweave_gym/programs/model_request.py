"""Normal form of a request to a language model: one value for the five dialects in which programs send it."""

from __future__ import annotations

from typing import Any

import msgspec

from envweave_gym.episode.message import Message

CHARS_PER_TOKEN = 4
"""Characters that count as one token where a reply has no usage."""
_TOKENS_PER_MESSAGE = 4


class ModelRequest(msgspec.Struct, frozen=True):
    """One request for a completion; ``body`` has all that the normal form has no place for."""

    dialect: str
    """``chat_completions``, ``responses``, ``anthropic_messages``, ``gemini`` or ``legacy_completions``."""
    model: str
    messages: tuple[Message, ...]
    """The chat, with the instructions first; results of tools are messages with role ``tool``."""
    tools: list[dict[str, Any]]
    """Functions as ``{"type": "function", "function": {"name": …, "parameters": {…}}}``; others as they were sent."""
    sampling: dict[str, Any]
    """All other parameters, under the names of chat completions where these have them: ``max_tokens``, ``stop`` (a
    list), ``tool_choice``, ``response_format``, ``seed``, …; the rest as they were sent."""
    is_stream: bool = False
    has_instructions: bool = False
    """Whether the first message was sent beside the chat: it holds for this request only."""
    prefix: str = ""
    """The first part of the path, before ``/v1``."""
    headers: dict[str, str] = {}
    """The headers that name the program and its agent; see ``KEPT_HEADERS``. None is a secret."""
    body: bytes = b""
    """The body as it was sent."""
    digest: str = ""
    """SHA-256 of path and body."""
    serial: int = 0
    """Its place among all calls of its port, which is part of the response's ID; 0 outside of a port."""

    def chat(self) -> list[dict[str, Any]]:
        """Return the messages as dicts that chat APIs take; they are copies."""
        return [one.as_dict() for one in self.messages]


def estimated_tokens(messages: tuple[Message, ...], tools: list[dict[str, Any]] | None = None) -> int:
    """Return about how many tokens a chat has; images count as none, as programs rewrite chats that seem too long."""
    chars = sum(_chars_in(one.content) + _chars_in(one.tool_calls) for one in messages) + _chars_in(tools)
    return chars // CHARS_PER_TOKEN + _TOKENS_PER_MESSAGE * len(messages)


def _chars_in(value: Any) -> int:
    if isinstance(value, str):
        return 0 if value.startswith("data:") else len(value)
    if isinstance(value, list):
        return sum(map(_chars_in, value))
    if isinstance(value, dict):
        return sum(len(str(key)) + _chars_in(item) for key, item in value.items())
    return 0


def plain_text(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot hold, in all texts of a JSON value."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [plain_text(item) for item in value]
    if isinstance(value, dict):
        return {plain_text(key): plain_text(item) for key, item in value.items()}
    return value
