"""Codec of OpenAI's Responses: items in, items out; a request may go on from an earlier response by its ID.

Calls that an assistant makes right after its text, or after each other, are one message of the chat. Tools of a
namespace are offered under their own name, or as ``namespace.name`` where two would be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.chat_completions import openai_error, openai_logprobs
from envweave_gym.programs.dialects.dialect import (
    BadRequest,
    Dialect,
    Fields,
    History,
    Target,
    content_of,
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
from envweave_gym.programs.reply import Reply

_NAMES = {"max_output_tokens": "max_tokens"}
_TEXTS = ("input_text", "output_text", "text")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses(Dialect):
    """``POST /v1/responses``."""

    name = "responses"

    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""
        if fields.pop("background", False):
            raise BadRequest("'background' is not supported; wait for the response")
        if fields.pop("conversation", None) is not None:
            raise BadRequest(
                "'conversation' is not supported; use 'previous_response_id', or send the whole input"
            )
        model = text(fields.pop("model", None), "model")
        instructions = text(fields.pop("instructions", None) or "", "instructions")
        messages = list[Message]()
        if (previous := fields.pop("previous_response_id", None)) is not None:
            if (before := history.get(text(previous, "previous_response_id"))) is None:
                raise BadRequest(
                    f"there is no response {previous[:80]!r} to go on from; send the whole input"
                )
            messages += before
        messages += _messages(fields.pop("input", None))
        tools = _tools(objects(fields.pop("tools", None) or [], "tools"))
        is_stream = bool(fields.pop("stream", False))
        sampling = renamed(fields, _NAMES)
        for one in _list_of(sampling.get("include") or [], "include"):
            text(one, "include")
        _read_choice(sampling)
        _read_format(sampling)
        return self.made(target, model, messages, tools, sampling, is_stream, instructions)

    def response_id(self, request: ModelRequest, number: int) -> str:
        """Return the ID by which later requests may refer to a reply; calls of two agents may have equal numbers."""
        return f"resp_{request.serial or number}"

    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply."""
        prompt, completion = usage_of(request, reply)
        reason = _INCOMPLETE.get(reply.finished_by)
        cached = (reply.usage or {}).get("cached_tokens", 0)
        return {
            **self._begun(request, number),
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": _items(request, reply, number),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + completion,
            },
        }

    def _begun(self, request: ModelRequest, number: int) -> Fields:
        return {
            "id": self.response_id(request, number),
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": request.model,
            "output": [],
            "parallel_tool_calls": request.sampling.get("parallel_tool_calls", True),
            "tool_choice": "auto",
            "tools": [],
            "temperature": request.sampling.get("temperature", 1.0),
            "top_p": request.sampling.get("top_p", 1.0),
            "usage": None,
        }

    def keep_alive(self, request: ModelRequest, number: int, keep_alives: int) -> bytes:
        """Return a piece of a slow answer: in a stream an event, as Codex counts neither comments nor blank lines."""
        if not request.is_stream:
            return super().keep_alive(request, number, keep_alives)
        events = _Events(keep_alives + 1 if keep_alives else 0)
        begun = self._begun(request, number)
        if not keep_alives:
            events.add("response.created", response=begun)
        events.add("response.in_progress", response=begun)
        return events.data()

    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the rest of a stream after ``keep_alives`` pieces of :meth:`keep_alive`."""
        opening = b"" if keep_alives else self.keep_alive(request, number, 0)
        events = _Events(max(keep_alives, 1) + 1)
        body = self.reply_body(request, reply, number)
        for index, item in enumerate(body["output"]):
            _add_item(events, index, item)
        events.add(f"response.{body['status']}", response=body)
        return opening + events.data()

    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error."""
        return openai_error(text)

    def count_body(self, request: ModelRequest) -> Fields:
        """Return the answer to a request that asks how many tokens its prompt has."""
        return {"object": "response.input_tokens", **super().count_body(request)}


class _Events:
    """Numbered events of a stream."""

    def __init__(self, number: int) -> None:
        self._number, self._written = number, list[bytes]()

    def add(self, kind: str, **fields: Any) -> None:
        self._written.append(event({"type": kind, "sequence_number": self._number, **fields}, kind))
        self._number += 1

    def data(self) -> bytes:
        return b"".join(self._written)


def _add_item(events: _Events, index: int, item: Fields) -> None:
    """Add the events of one item of the output."""
    at = {"item_id": item["id"], "output_index": index}
    progress = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = item["content"]
        events.add("response.output_item.added", output_index=index, item={**progress, "content": []})
        at["content_index"] = 0
        logprobs = part.get("logprobs", [])
        events.add("response.content_part.added", **at, part={**part, "text": "", "logprobs": []})
        if part["text"]:
            events.add("response.output_text.delta", **at, delta=part["text"], logprobs=logprobs)
        events.add("response.output_text.done", **at, text=part["text"], logprobs=logprobs)
        events.add("response.content_part.done", **at, part=part)
    else:
        key = _CALLS[item["type"]]
        kind = f"response.{item['type']}_{key}"
        events.add("response.output_item.added", output_index=index, item={**progress, key: ""})
        events.add(f"{kind}.delta", **at, delta=item[key])
        done = {"name": item["name"]} if key == "arguments" else {}
        events.add(f"{kind}.done", **at, **{key: item[key]}, **done)
    events.add("response.output_item.done", output_index=index, item=item)


def _items(request: ModelRequest, reply: Reply, number: int) -> list[Fields]:
    calls = reply.wire_calls(number)
    items = list[Fields]()
    if reply.content or not calls:
        part: Fields = {"type": "output_text", "text": reply.content or "", "annotations": [], "logprobs": []}
        if "message.output_text.logprobs" in (request.sampling.get("include") or ()):
            part["logprobs"] = openai_logprobs(reply)
        message = {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant"}
        items.append({**message, "content": [part]})
    return [*items, *(_call_item(request.tools, call, f"{number}_{i}") for i, call in enumerate(calls))]


def _call_item(tools: list[Fields], call: Fields, suffix: str) -> Fields:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    tool = next((one for one in tools if _name_of(one) == name), {})
    if tool.get("type") == "custom":
        given = _custom_input(arguments)
        kind, item_id, rest = "custom_tool_call", f"ctc_{suffix}", {"name": name, "input": given}
    else:
        kind, item_id, rest = "function_call", f"fc_{suffix}", {"name": name, "arguments": arguments}
        if (namespace := tool.get("namespace")) is not None:
            rest |= {"namespace": namespace, "name": name.removeprefix(f"{namespace}.")}
    return {"type": kind, "id": item_id, "call_id": call["id"], **rest, "status": "completed"}


def _custom_input(arguments: str) -> str:
    """Return the text that a custom tool takes; models that know only JSON arguments give it as ``input``."""
    with suppress(ValueError, RecursionError):
        given = msgspec.json.decode(arguments)
        if isinstance(given, dict) and isinstance(given.get("input"), str):
            return given["input"]
    return arguments


def _name_of(tool: Fields) -> Any:
    inner = tool.get(tool.get("type", ""))
    return inner.get("name") if isinstance(inner, dict) else None


# Reading


def _list_of(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{name!r} is not a list")
    return value


def _messages(given: Any) -> Iterable[Message]:
    if isinstance(given, str):
        return [Message("user", given)]
    messages = list[Message]()
    for item in objects(given, "input"):
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(Message(text(item.get("role"), "role"), _content(item.get("content"))))
        elif kind in _OUTPUTS:
            call_id = text(item.get("call_id"), "call_id")
            messages.append(Message("tool", _content(item.get("output")), tool_call_id=call_id))
        elif kind in _CALLS:
            call = _call(item, _CALLS[kind])
            if messages and messages[-1].role == "assistant":
                last = messages.pop()
                messages.append(msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or []), call]))
            else:
                messages.append(Message("assistant", None, [call]))
        elif kind == "item_reference":
            raise BadRequest("'item_reference' is not supported; send the item itself")
        else:  # such as reasoning, or calls of built-in tools
            messages.append(Message("assistant", [item]))
    return messages


def _call(item: Fields, key: str) -> Fields:
    others = {"namespace": item["namespace"]} if item.get("namespace") is not None else {}
    return function_call(item.get("call_id"), item.get("name"), text(item.get(key), key), **others)


def _content(content: Any) -> str | list[Fields]:
    if content is None or isinstance(content, str):
        return content or ""
    return content_of([_part(part) for part in objects(content, "content")])


def _part(part: Fields) -> Fields:
    if part.get("type") in _TEXTS:
        return text_part(part.get("text"))
    if part.get("type") == "input_image" and isinstance(url := part.get("image_url"), str):
        return image_part(url, **({"detail": part["detail"]} if part.get("detail") else {}))
    return part


def _tools(given: list[Fields]) -> list[Fields]:
    tools = list[Fields]()
    # Functions outside of namespaces have their own names, wherever they stand in the list.
    names = {
        one["name"] for one in given if one.get("type") != "namespace" and isinstance(one.get("name"), str)
    }
    for one in given:
        text(one.get("type", ""), "type")
        if one.get("type") != "namespace":
            tools.append(_tool(one, one.get("name")))
            continue
        namespace = text(one.get("name"), "name")
        for inner in objects(one.get("tools"), "tools"):
            name = text(inner.get("name"), "name")
            name = f"{namespace}.{name}" if name in names else name
            kind = text(inner.get("type", "function"), "type")
            tools.append({**_tool({**inner, "type": kind}, name), "namespace": namespace})
            names.add(name)
    return tools


def _tool(one: Fields, name: Any) -> Fields:
    if one.get("type") == "function":
        return function_tool(name, one.get("description"), one.get("parameters"), strict=one.get("strict"))
    if one.get("type") == "custom":
        rest = {key: value for key, value in one.items() if key not in ("type", "name")}
        return {"type": "custom", "custom": {"name": text(name, "name"), **rest}}
    return one


def _read_choice(sampling: Fields) -> None:
    choice = sampling.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        sampling["tool_choice"] = {"type": "function", "function": {"name": text(choice.get("name"), "name")}}


def _read_format(sampling: Fields) -> None:
    """Move ``text.format`` to ``response_format``, in the form of chat completions."""
    options = object_in(sampling.get("text"), "text")
    form = object_in(options.get("format"), "format")
    if not form:
        return
    schema = {key: value for key, value in form.items() if key != "type"}
    is_schema = form.get("type") == "json_schema"
    sampling["response_format"] = {"type": "json_schema", "json_schema": schema} if is_schema else form
    rest = {key: value for key, value in options.items() if key != "format"}
    sampling.pop("text")
    if rest:
        sampling["text"] = rest
