"""The reply of an agent that plays the model, text and tool calls: as an action, and in a real model's text."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

import msgspec

from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.typed.json_space import JsonOf

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NOT_SPACE = re.compile(r"\S")
_LONGEST_SHOWN_CHARS = 200
_LOWEST_LOGPROB = -9999.0
"""What programs get for ``-inf``, which JSON does not have; OpenAI sends the same."""
_FORM = '<tool_call>{"name": "…", "arguments": {…}}</tool_call>'


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
    """Token counts, ``prompt_tokens`` and ``completion_tokens``; without them the program gets an estimate."""
    token_ids: list[int] | None = None
    """The IDs of the sampled tokens; they go to the program only with ``logprobs``, and if it asks for these."""
    tokens: list[str] | None = None
    """The texts of the sampled tokens."""
    logprobs: list[float] | None = None
    """The log-probabilities of the sampled tokens."""

    def __post_init__(self) -> None:
        lengths = {len(one) for one in (self.token_ids, self.tokens, self.logprobs) if one is not None}
        if len(lengths) > 1:
            raise ValueError("token_ids, tokens and logprobs differ in length; give one of each for a token")
        if any(math.isnan(one) or one == math.inf for one in self.logprobs or ()):
            raise ValueError(
                "logprobs has NaN or infinity; give numbers, or -inf for a token of no probability"
            )

    def sampled(self) -> list[tuple[str, int | None, float]]:
        """Return text, ID and log-probability of each token; none without log-probabilities."""
        if self.logprobs is None:
            return []
        logprobs = [max(one, _LOWEST_LOGPROB) for one in self.logprobs]
        ids: list[int | None] = [*(self.token_ids or [None] * len(logprobs))]
        texts = self.tokens or [f"token_id:{one}" if one is not None else "" for one in ids]
        return list(zip(texts, ids, logprobs, strict=True))

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


def assistant_message(reply: Reply, number: int) -> dict[str, Any]:
    """Return a reply as a message of a chat; a missing ID of a tool call is made of ``number``."""
    calls = reply.wire_calls(number)
    content = reply.content if reply.content is not None or calls else ""
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; raise ``InvalidAction`` for a text that is none."""
    arguments: Any = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise InvalidAction(
            f"the arguments {shown(call.arguments)} of {call.name} are not a JSON object, and this program's dialect"
            " carries no others; give an object"
        )
    return arguments


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
    calls: list[dict[str, Any]] = []
    others, end = list[str](), 0
    while tools and (begin := text.find(_OPEN, end)) >= 0:
        others.append(text[end:begin])
        call, end = _read_call(text, begin)
        calls.append(call)
    if not calls:
        return text
    content = "".join([*others, text[end:]]).strip()
    return {**({"content": content} if content else {}), "tool_calls": calls}


def _read_call(text: str, begin: int) -> tuple[dict[str, Any], int]:
    """Return the call whose opening tag begins there, and where its closing tag ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, _after_space(text, begin + len(_OPEN)))
        call = msgspec.to_builtins(msgspec.convert(value, ToolCall))
        end = _after_space(text, end)
        if not text.startswith(_CLOSE, end):
            raise ValueError
    except (ValueError, RecursionError):
        given = text[begin : begin + _LONGEST_SHOWN_CHARS]
        raise InvalidAction(f"{shown(given)} is not a tool call; write it like {_FORM}") from None
    return call, end + len(_CLOSE)


def _after_space(text: str, at: int) -> int:
    found = _NOT_SPACE.search(text, at)
    return found.start() if found else len(text)


def _text_of(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
