"""Text that a language model reads after a reset or a step: the messages in its stream."""

from __future__ import annotations

from typing import Any

from envweave_gym.episode.stream import EventKind, Stream


def prompt_in(stream: Any) -> str | None:
    """Return the texts of the messages that a model reads after this reset or step; ``None`` if there are none."""
    if not isinstance(stream, Stream):
        return None
    texts: list[str] = []
    for event in stream.events:
        if event.kind == EventKind.MESSAGE and event.data.get("role") != "assistant":
            texts += _texts_of(event.data.get("content"))
    return "\n\n".join(texts) if texts else None


def _texts_of(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
