"""Messages that a language model reads or writes, in the form of an OpenAI-style chat API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind, agents_in, stream_of

# Looking up a member of an enum costs as much as making an event.
_MESSAGE = EventKind.MESSAGE

Content = str | list[dict[str, Any]] | None
"""A text, or a list of parts such as ``{"type": "text", "text": …}``; ``None`` only beside tool calls."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a chat; :meth:`as_dict` returns the form that chat APIs take."""

    role: str
    content: Content = None
    tool_calls: list[dict[str, Any]] | None = None
    """The tool calls of an assistant, each ``{"id": …, "type": "function", "function": {…}}``."""
    tool_call_id: str | None = None
    """The ID of the tool call that a message with role ``tool`` answers."""
    name: str | None = None

    @classmethod
    def of(cls, event: Event) -> Message:
        """Return the message in the data of a ``message`` event."""
        data = event.data
        rest = data.get("tool_calls"), data.get("tool_call_id"), data.get("name")
        return cls(data["role"], data.get("content"), *rest)

    def as_dict(self) -> dict[str, Any]:
        """Return a dict of the fields that are set; its lists and dicts are copies."""
        return msgspec.to_builtins(self)


def message(
    role: str,
    content: Content = None,
    *,
    agent: str | None = None,
    to: tuple[str, ...] | None = None,
    replace: bool = False,
    tool_calls: Sequence[dict[str, Any]] | None = None,
    tool_call_id: str | None = None,
    name: str | None = None,
    token_ids: Any = None,
    logprobs: Any = None,
) -> Event:
    """Return the event of a chat message.

    ``replace=True`` starts a new history: readers drop the messages before it. ``token_ids`` and ``logprobs``, lists
    or arrays, are those of the model that wrote the message; trainers read them from the event's data.
    """
    if not isinstance(role, str):
        raise InvalidArgument(f"message({shown(role)}): a role is a text, such as 'user'")
    data: dict[str, Any] = {"role": role}
    if content is not None:
        plain = type(content) is str and content.isascii()
        data["content"] = content if plain else jsonable(_checked_content(role, content))
    elif not tool_calls:
        raise InvalidArgument(f"message({role!r}) has neither content nor tool_calls; give one of them")
    if tool_calls and not _are_dicts(tool_calls):
        raise InvalidArgument(f"message({role!r}): tool_calls={shown(tool_calls)} is no list of dicts")
    if replace:
        data["replace"] = True
    for field, value in (
        ("tool_calls", tool_calls),
        ("tool_call_id", tool_call_id),
        ("name", name),
        ("token_ids", token_ids),
        ("logprobs", logprobs),
    ):
        if value is not None:
            data[field] = jsonable(value)
    return Event(UNNUMBERED, _MESSAGE, agent, None if to is None else agents_in(to, "message"), data)


def _checked_content(role: str, content: Any) -> Any:
    if not isinstance(content, str) and not _are_dicts(content):
        part = '{"type": "text", "text": "…"}'
        raise InvalidArgument(
            f"message({role!r}): content={shown(content)} is neither a text nor a list of parts such as {part}"
        )
    return content


def _are_dicts(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(one, Mapping) for one in values)


def messages_of(info: Any, agent: str | None = None) -> Any:
    """Return the chat messages that are new in ``info``, as dicts for a chat API; on reset, the whole prompt.

    Where the history starts anew, with a message marked ``replace`` or with a new episode in the same step,
    messages before that are left out. ``agent`` picks one agent of PettingZoo infos; without it they give a
    dict of lists by agent, and a vector info gives a list of lists.
    """
    return _messages(stream_of(info if agent is None else _info_of_agent(info, agent)))


def _info_of_agent(infos: Any, agent: str) -> Any:
    of_game = isinstance(infos, Mapping) and "stream" not in infos
    agents = [one for one, own in infos.items() if isinstance(own, Mapping)] if of_game else []
    if agent not in agents:
        there_are = ", ".join(map(repr, agents))
        todo = f"there are {there_are}" if agents else "these are not the infos of a game, so leave agent out"
        raise InvalidArgument(f"messages_of: {shown(agent)} is no agent of these infos; {todo}")
    return infos[agent]


def _messages(streams: Any) -> Any:
    if isinstance(streams, dict):
        return {agent: _messages(one) for agent, one in streams.items()}
    if isinstance(streams, list):
        return [_messages(one) for one in streams]
    new: list[dict[str, Any]] = []
    for event in () if streams is None else streams.events:
        if event.kind == EventKind.EPISODE_START:
            new.clear()
        elif event.kind == EventKind.MESSAGE:
            if event.data.get("replace"):
                new.clear()
            new.append(Message.of(event).as_dict())
    return new
