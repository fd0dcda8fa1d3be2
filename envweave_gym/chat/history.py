"""The messages that one role of a chat has read and written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from envweave_gym.core.faults import NotAvailable, shown
from envweave_gym.episode.message import messages_of
from envweave_gym.episode.stream import EventKind, stream_of

ChatMessage = dict[str, Any]
"""A message as :func:`envweave_gym.messages_of` returns it."""


class ChatHistory:
    """What one role has read and written; :attr:`messages` is replaced by a longer list, and never changed."""

    def __init__(self, instruction: str = "", explain: Callable[[], str] = str) -> None:
        """``instruction`` is the text before the first message.

        Without one, an environment that writes no messages begins with the result of ``explain``.
        """
        self.messages: list[ChatMessage] = []
        self._instruction, self._explain = instruction, explain
        self._writes_messages = False

    def read(self, info: Any, observation: Any, *, acts: bool = True) -> None:
        """Append the new messages of an info.

        An environment that never sends messages shows its observation as text, to a role that ``acts`` next.
        """
        new = messages_of(info)
        self._writes_messages |= bool(new)
        shows = acts and not self._writes_messages
        if shows:
            new = [{"role": "user", "content": str(observation)}]
        earlier = [] if _begins_anew(info) else self.messages
        if new and not earlier:
            new = with_instruction(self._instruction or (self._explain() if shows else ""), new)
        self.append(new, anew=not earlier)

    def append(self, messages: Sequence[ChatMessage], *, anew: bool = False) -> None:
        """Append messages, or begin ``anew`` with them."""
        self.messages = [*([] if anew else self.messages), *messages]

    def tell(self, text: str) -> None:
        """Append a message to the model."""
        self.append([{"role": "user", "content": text}])

    def answer(self, text: str) -> None:
        """Append a reply of the model."""
        self.append([{"role": "assistant", "content": text}])


def messages_since(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the messages after the reply to those ``before``; all of them if the history has begun anew."""
    goes_on = len(after) > len(before) and all(map(operator.is_, before, after))
    return after[len(before) + 1 :] if goes_on else after


def with_instruction(instruction: str, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages after a system message; one that they begin with is extended."""
    if not instruction:
        return [*messages]
    if messages and messages[0]["role"] == "system":
        content = f"{instruction}\n{text_of(messages[0])}"
        return [{**messages[0], "content": content}, *messages[1:]]
    return [{"role": "system", "content": instruction}, *messages]


def text_of(message: ChatMessage) -> str:
    """Return the content of a message, whose parts must be texts; raise ``NotAvailable`` for others, as images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if kinds := {str(part.get("type")) for part in content} - {"text"}:
        raise NotAvailable(f"a message has parts of type {shown(min(kinds))}; only text is read here")
    return "".join(part["text"] for part in content)


def _begins_anew(info: Any) -> bool:
    """Return whether the messages of an info begin an episode, or replace the history."""
    stream = stream_of(info)
    return any(
        event.kind == EventKind.EPISODE_START
        or (event.kind == EventKind.MESSAGE and bool(event.data.get("replace")))
        for event in (() if stream is None else stream.events)
    )
