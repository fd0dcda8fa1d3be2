"""Base of the codecs: bodies of requests to the normal form, and replies to bodies, whole or as server-sent events.

A codec knows no HTTP but the path. What it cannot read is a :class:`BadRequest`; a reply that it cannot carry is an
``InvalidAction``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from envweave_gym.episode.message import Message
from envweave_gym.programs.model_request import ModelRequest, estimated_tokens, plain_text
from envweave_gym.programs.reply import Reply

Fields = dict[str, Any]
"""The body of a request, which the codec may change."""
History = Mapping[str, tuple[Message, ...]]
"""The chats after earlier responses, without instructions, by the ID of the response."""
BLANK_LINE, SPACE = b"\n", b" "
MAX_DEPTH = 100
"""Objects and lists in each other; deeper bodies are refused, as code that reads them may be recursive."""
_MALFORMED = (TypeError, ValueError, LookupError, AttributeError, RecursionError)


class BadRequest(Exception):
    """Raised for a body that is not a request of the dialect; the text is for the program."""


@dataclass(frozen=True)
class Target:
    """The part of a request outside of its body: path and headers."""

    action: str = "complete"
    """``complete`` or ``count``."""
    model: str = ""
    """The model, where the path names it."""
    is_stream: bool = False
    """Whether the path asks for a stream."""
    is_array: bool = False
    """Whether the stream is a JSON array instead of events."""
    prefix: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    digest: str = ""


class Dialect(ABC):
    """Codec of one API of language models."""

    name: str

    def request_in(self, target: Target, history: History) -> ModelRequest:
        """Return the request in the target's body; raise :class:`BadRequest` for all else that may be there."""
        fields = fields_in(target.body)
        try:
            return self.read(fields, target, history)
        except _MALFORMED:
            raise BadRequest(f"a field of the body has no form that {self.name} knows") from None

    @abstractmethod
    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""

    @abstractmethod
    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply; ``number``, which counts the calls, is part of its IDs."""

    @abstractmethod
    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the rest of a stream after ``keep_alives`` pieces of :meth:`keep_alive`."""

    @abstractmethod
    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error that clients do not answer with another try."""

    def check(self, reply: Reply) -> None:  # noqa: B027 - most dialects carry every reply
        """Raise ``InvalidAction`` for a reply that the dialect cannot carry."""

    def keep_alive(self, request: ModelRequest, number: int, keep_alives: int) -> bytes:
        """Return a piece of a slow answer that clients ignore, but that restarts their timeouts."""
        return BLANK_LINE if request.is_stream else SPACE

    def content_type(self, request: ModelRequest) -> str:
        """Return the media type of a reply."""
        return "text/event-stream" if request.is_stream else "application/json"

    def response_id(self, request: ModelRequest, number: int) -> str | None:
        """Return the ID by which later requests may refer to a reply; ``None`` if they never do."""
        return None

    def count_body(self, request: ModelRequest) -> Fields:
        """Return the answer to a request that asks how many tokens its prompt has."""
        return {"input_tokens": estimated_tokens(request.messages, request.tools)}

    def made(
        self,
        target: Target,
        model: str,
        messages: Iterable[Message],
        tools: list[Fields],
        sampling: Fields,
        is_stream: bool,
        instructions: str | list[Fields] | None = None,
    ) -> ModelRequest:
        """Return a request of this dialect; ``instructions`` become its first message."""
        first = [Message("system", instructions)] if instructions else []
        return ModelRequest(
            self.name,
            model,
            (*first, *messages),
            tools,
            sampling,
            is_stream,
            bool(first),
            target.prefix,
            target.headers,
            target.body,
            target.digest,
        )


# Reading


def fields_in(body: bytes) -> Fields:
    """Return the object in a body; raise :class:`BadRequest` if there is none."""
    try:
        try:
            fields = msgspec.json.decode(body)
        except (ValueError, RecursionError):  # msgspec refuses lone surrogates, which some programs send
            fields = plain_text(json.loads(body, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequest("the body is not a JSON object")
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and not _is_flat(fields):
        raise BadRequest(f"the body has more than {MAX_DEPTH} objects and lists in each other")
    return fields


def _is_flat(fields: Fields) -> bool:
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        inner = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
        level = [one for one in inner if isinstance(one, dict | list)]
        if not level:
            return True
    return False


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def objects(value: Any, name: str) -> list[Fields]:
    """Return a list of objects; raise :class:`BadRequest` for all else."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadRequest(f"{name!r} is not a list of objects")
    return value


def text(value: Any, name: str) -> str:
    """Return a text; raise :class:`BadRequest` for all else."""
    if not isinstance(value, str):
        raise BadRequest(f"{name!r} is not a text")
    return value


def object_in(value: Any, name: str) -> Fields:
    """Return an object, empty for ``null``; raise :class:`BadRequest` for all else."""
    if value is not None and not isinstance(value, dict):
        raise BadRequest(f"{name!r} is not an object")
    return value or {}


def check_one(value: Any, name: str) -> None:
    """Raise :class:`BadRequest` unless one completion is asked for."""
    if value not in (None, 1):
        raise BadRequest(f"{name!r} is not 1; ask for one completion at a time")


def renamed(fields: Fields, names: Mapping[str, str]) -> Fields:
    """Return the fields that are set under their common names."""
    return {names.get(key, key): value for key, value in fields.items() if value is not None}


def stop_list(sampling: Fields) -> None:
    """Make a list of a single stop sequence."""
    if isinstance(stop := sampling.get("stop"), str):
        sampling["stop"] = [stop]


def content_of(parts: list[Fields]) -> str | list[Fields]:
    """Return the content of a message: a text if it is the only part and has no other fields."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"} and parts[0]["type"] == "text":
        return text(parts[0]["text"], "text")
    return parts or ""


def text_part(value: Any) -> Fields:
    """Return a text as a part of a message."""
    return {"type": "text", "text": text(value, "text")}


def image_part(url: str, **others: Any) -> Fields:
    """Return an image as a part of a message; ``url`` may be a data URL."""
    return {"type": "image_url", "image_url": {"url": url, **others}}


def data_url(media_type: Any, data: Any) -> str:
    """Return Base64 data as a data URL."""
    return f"data:{media_type or 'application/octet-stream'};base64,{text(data, 'data')}"


def function_tool(name: Any, description: Any, parameters: Any, **others: Any) -> Fields:
    """Return a function in the form of chat completions."""
    given = {"description": description, "parameters": parameters, **others}
    return {
        "type": "function",
        "function": {
            "name": text(name, "name"),
            **{key: value for key, value in given.items() if value is not None},
        },
    }


def function_call(call_id: Any, name: Any, arguments: str, **others: Any) -> Fields:
    """Return a call of a function in the form of chat completions."""
    function = {"name": text(name, "name"), "arguments": arguments}
    return {"id": text(call_id, "id"), "type": "function", "function": function, **others}


# Writing


def event(data: Fields, name: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, json.dumps(data).encode())


def usage_of(request: ModelRequest, reply: Reply) -> tuple[int, int]:
    """Return the tokens of prompt and reply: the reply's own counts, else an estimate."""
    if reply.usage is not None:
        return reply.usage.get("prompt_tokens", 0), reply.usage.get("completion_tokens", 0)
    answer = Message("assistant", reply.content or "", reply.wire_calls(0))
    return estimated_tokens(request.messages, request.tools), estimated_tokens((answer,))
