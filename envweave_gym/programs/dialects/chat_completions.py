"""Codec of OpenAI's chat completions."""

from __future__ import annotations

from typing import Any

from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.dialect import (
    BadRequest,
    Dialect,
    Fields,
    History,
    Target,
    check_one,
    content_of,
    event,
    objects,
    renamed,
    stop_list,
    text,
    usage_of,
)
from envweave_gym.programs.model_request import ModelRequest
from envweave_gym.programs.reply import Reply, assistant_message

_NAMES = {"max_completion_tokens": "max_tokens"}


class ChatCompletions(Dialect):
    """``POST /v1/chat/completions``."""

    name = "chat_completions"

    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""
        messages = [_message(one) for one in objects(fields.pop("messages", None), "messages")]
        model = text(fields.pop("model", None), "model")
        tools = objects(fields.pop("tools", None) or [], "tools")
        check_one(fields.pop("n", None), "n")
        is_stream = bool(fields.pop("stream", False))
        sampling = renamed(fields, _NAMES)
        stop_list(sampling)
        return self.made(target, model, messages, tools, sampling, is_stream)

    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply."""
        choice = {
            "index": 0,
            "message": assistant_message(reply, number),
            "finish_reason": reply.finished_by,
            "logprobs": _logprobs(request, reply),
        }
        head = _head("chat.completion", request, number)
        return {**head, "choices": [choice], "usage": openai_usage(request, reply)}

    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the stream of a reply: a chunk for the role, one for the text, two for each call, one for the end."""
        head = _head("chat.completion.chunk", request, number)

        def chunk(delta: Fields, finish_reason: str | None = None, **others: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **others}
            return event({**head, "choices": [choice]})

        chunks = [chunk({"role": "assistant", "content": ""})]
        if reply.content:
            chunks.append(chunk({"content": reply.content}, logprobs=_logprobs(request, reply)))
        for index, call in enumerate(reply.wire_calls(number)):
            function = call["function"]
            begin = {**call, "index": index, "function": {**function, "arguments": ""}}
            arguments = {"index": index, "function": {"arguments": function["arguments"]}}
            chunks += [chunk({"tool_calls": [one]}) for one in (begin, arguments)]
        chunks.append(chunk({}, reply.finished_by))
        return openai_stream(request, reply, head, chunks)

    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error."""
        return openai_error(text)


def _message(one: Fields) -> Message:
    role, content = text(one.get("role"), "role"), one.get("content")
    calls = one.get("tool_calls") or None
    if isinstance(content, list):
        content = content_of(objects(content, "content"))
    elif content is not None and not isinstance(content, str):
        raise BadRequest("'content' is neither a text nor a list of objects")
    if calls is not None:
        objects(calls, "tool_calls")
    if content is None and not calls:
        content = ""
    ids = {key: text(one[key], key) for key in ("tool_call_id", "name") if one.get(key) is not None}
    return Message(role, content, calls, **ids)


def _logprobs(request: ModelRequest, reply: Reply) -> Fields | None:
    if not request.sampling.get("logprobs") or reply.logprobs is None:
        return None
    return {"content": openai_logprobs(reply), "refusal": None}


def openai_logprobs(reply: Reply) -> list[Fields]:
    """Return the log-probabilities of a reply in OpenAI's form."""
    return [
        {
            "token": token,
            "logprob": logprob,
            "bytes": list(token.encode(errors="replace")),
            "top_logprobs": [],
        }
        for token, _, logprob in reply.sampled()
    ]


def _head(kind: str, request: ModelRequest, number: int) -> Fields:
    # No clock: the same replies give the same bytes.
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 0, "model": request.model}


def openai_stream(request: ModelRequest, reply: Reply, head: Fields, chunks: list[bytes]) -> bytes:
    """Return the stream of these chunks, the usage if the program asked for it, and the mark of the end."""
    options = request.sampling.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        chunks = [*chunks, event({**head, "choices": [], "usage": openai_usage(request, reply)})]
    return b"".join([*chunks, b"data: [DONE]\n\n"])


def openai_usage(request: ModelRequest, reply: Reply) -> Fields:
    """Return the usage of a reply in the form of completions."""
    prompt, completion = usage_of(request, reply)
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**total, **(reply.usage or {})}


def openai_error(message: str, code: str | None = None) -> Fields:
    """Return the body of an error in OpenAI's form; of this type clients make no other try."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
