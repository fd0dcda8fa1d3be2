"""Codec of Anthropic's Messages."""

from __future__ import annotations

import json
from typing import Any

from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.dialect import (
    BadRequest,
    Dialect,
    Fields,
    History,
    Target,
    content_of,
    data_url,
    event,
    function_call,
    function_tool,
    image_part,
    object_in,
    objects,
    renamed,
    text,
    text_part,
    usage_of,
)
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.reply import Reply, arguments_object

_NAMES = {"stop_sequences": "stop"}
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class AnthropicMessages(Dialect):
    """``POST /v1/messages``."""

    name = "anthropic_messages"

    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""
        system = _content(fields.pop("system", None))
        messages = list[Message]()
        for one in objects(fields.pop("messages", None), "messages"):
            messages += _messages(text(one.get("role"), "role"), one.get("content"))
        model = text(fields.pop("model", None), "model")
        tools = [_tool(one) for one in objects(fields.pop("tools", None) or [], "tools")]
        is_stream = bool(fields.pop("stream", False))
        sampling = renamed(fields, _NAMES)
        _read_choice(sampling)
        return self.made(target, model, messages, tools, sampling, is_stream, system)

    def check(self, reply: Reply) -> None:
        """Refuse calls whose arguments are not objects."""
        for call in reply.tool_calls:
            arguments_object(call)

    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply."""
        prompt, completion = usage_of(request, reply)
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": _blocks(reply, number),
            "stop_reason": _STOP_REASONS[reply.finished_by],
            "stop_sequence": None,
            "usage": {"input_tokens": prompt, "output_tokens": completion},
        }

    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the stream of a reply: each block in three events, between the events of the message."""
        body = self.reply_body(request, reply, number)
        usage = body["usage"]
        begun = {**body, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
        events = [_event("message_start", message=begun)]
        for index, block in enumerate(body["content"]):
            if block["type"] == "text":
                empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                empty = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            events += [
                _event("content_block_start", index=index, content_block=empty),
                _event("content_block_delta", index=index, delta=delta),
                _event("content_block_stop", index=index),
            ]
        end = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        events += [_event("message_delta", delta=end, usage=usage), _event("message_stop")]
        return b"".join(events)

    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": text}}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _blocks(reply: Reply, number: int) -> list[Fields]:
    calls = [
        {"type": "tool_use", "id": wire["id"], "name": call.name, "input": arguments_object(call)}
        for call, wire in zip(reply.tool_calls, reply.wire_calls(number), strict=True)
    ]
    texts = [{"type": "text", "text": reply.content or ""}] if reply.content or not calls else []
    return [*texts, *calls]


def _messages(role: str, content: Any) -> list[Message]:
    """Return the messages in one of Anthropic's; results of tools are messages of their own."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content, "content")
    if role == "assistant":
        calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
        parts = [_part(block) for block in blocks if block.get("type") != "tool_use"]
        return [Message(role, content_of(parts) if parts or not calls else None, calls or None)]
    messages, parts = list[Message](), list[Fields]()
    for block in blocks:
        if block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        if parts:
            messages.append(Message(role, content_of(parts)))
            parts = []
        call_id = text(block.get("tool_use_id"), "tool_use_id")
        messages.append(Message("tool", _content(block.get("content")), tool_call_id=call_id))
    return [*messages, Message(role, content_of(parts))] if parts or not messages else messages


def _content(content: Any) -> str | list[Fields]:
    if content is None or isinstance(content, str):
        return content or ""
    return content_of([_part(block) for block in objects(content, "content")])


def _part(block: Fields) -> Fields:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return text_part(block.get("text"))
    if kind == "image" and isinstance(source, dict):
        if source.get("type") == "url":
            return image_part(text(source.get("url"), "url"))
        if source.get("type") == "base64":
            return image_part(data_url(source.get("media_type"), source.get("data")))
    return block


def _call(block: Fields) -> Fields:
    return function_call(
        block.get("id"), block.get("name"), json.dumps(object_in(block.get("input"), "input"))
    )


def _tool(one: Fields) -> Fields:
    if one.get("type") not in (None, "custom"):
        return one
    return function_tool(one.get("name"), one.get("description"), one.get("input_schema"))


def _read_choice(sampling: Fields) -> None:
    choice = object_in(sampling.pop("tool_choice", None), "tool_choice")
    if not choice:
        return
    kind = choice.get("type")
    if kind == "tool":
        sampling["tool_choice"] = {"type": "function", "function": {"name": text(choice.get("name"), "name")}}
    elif kind in _CHOICES:
        sampling["tool_choice"] = _CHOICES[kind]
    else:
        raise BadRequest("'tool_choice' has none of the types auto, any, tool and none")
    if choice.get("disable_parallel_tool_use"):
        sampling["parallel_tool_calls"] = False
