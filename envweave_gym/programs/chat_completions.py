"""Codec of OpenAI's chat completions and legacy completions: bodies of requests to calls, and replies to bodies."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from envweave_gym.programs.reply import Reply

CHAT, LEGACY = "/chat/completions", "/completions"


class BadRequest(Exception):
    """Raised for a body that is not a request of the dialect; the text is for the program."""


class CompletionRequest(msgspec.Struct, frozen=True):
    """A request for one completion, in the form that all dialects share."""

    model: str
    messages: list[dict[str, Any]]
    """The chat; the prompt of a legacy completion is one message of the user."""
    tools: list[dict[str, Any]]
    """The offered tools, as the program has sent them."""
    sampling: dict[str, Any]
    """All other parameters: temperature, stop, tool_choice, …"""
    is_stream: bool = False
    is_chat: bool = True


def read_request(path: str, body: bytes) -> CompletionRequest:
    """Return the request in a body that was sent to ``path``; raise :class:`BadRequest` if it is none."""
    try:
        # Not msgspec: lone surrogates in escapes, which some programs send, are refused there.
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequest("the body is not a JSON object")
    is_chat = path.endswith(CHAT)
    messages = fields.pop("messages", None) if is_chat else _prompt_of(fields.pop("prompt", None))
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise BadRequest("'messages' is not a list of objects")
    model, tools = fields.pop("model", None), fields.pop("tools", None) or []
    if not isinstance(model, str):
        raise BadRequest("'model' is not a text")
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise BadRequest("'tools' is not a list of objects")
    if fields.get("n") not in (None, 1):
        raise BadRequest("'n' is not 1; ask for one completion at a time")
    stream = bool(fields.pop("stream", False))
    return CompletionRequest(model, _plain(messages), _plain(tools), _plain(fields), stream, is_chat)


def _prompt_of(prompt: Any) -> list[dict[str, Any]]:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("'prompt' is not a text")
    return [{"role": "user", "content": prompt}]


def _plain(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot hold, in all texts of a JSON value."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return value


def write_reply(request: CompletionRequest, reply: Reply, number: int) -> tuple[str, bytes]:
    """Return content type and body of a reply; ``number``, which counts the calls, is part of its IDs."""
    head = _head(request, number)
    if request.is_stream:
        return "text/event-stream", _events(request, reply, number, head)
    choice: dict[str, Any] = {"index": 0, "finish_reason": reply.finished_by, "logprobs": None}
    if request.is_chat:
        choice["message"] = assistant_message(reply, number)
    else:
        choice["text"] = reply.content or ""
    return "application/json", _json({**head, "choices": [choice], **_usage(reply)})


def assistant_message(reply: Reply, number: int) -> dict[str, Any]:
    """Return a reply as a message of a chat; a missing ID of a tool call is made of ``number``."""
    calls = reply.wire_calls(number)
    content = reply.content if reply.content is not None or calls else ""
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def _head(request: CompletionRequest, number: int) -> dict[str, Any]:
    kind = "chat.completion" if request.is_chat else "text_completion"
    chunk = ".chunk" if request.is_stream and request.is_chat else ""
    # No clock: the same replies give the same bytes.
    return {"id": f"cmpl-{number}", "object": f"{kind}{chunk}", "created": 0, "model": request.model}


def _usage(reply: Reply) -> dict[str, Any]:
    if reply.usage is None:
        return {}
    prompt, completion = (reply.usage.get(f"{kind}_tokens", 0) for kind in ("prompt", "completion"))
    total = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": {**total, **reply.usage}}


def _events(request: CompletionRequest, reply: Reply, number: int, head: dict[str, Any]) -> bytes:
    """Return the whole reply as server-sent events: one for the text, one for each tool call, one for the end."""
    if request.is_chat:
        message = assistant_message(reply, number)
        calls = [{"index": i, **call} for i, call in enumerate(message.pop("tool_calls", []))]
        deltas: list[dict[str, Any]] = [message, *({"tool_calls": [call]} for call in calls)]
        choices: list[dict[str, Any]] = [{"delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"delta": {}, "finish_reason": reply.finished_by})
    else:
        choices = [{"text": reply.content or "", "finish_reason": reply.finished_by}]
    chunks = [{**head, "choices": [{"index": 0, **choice}]} for choice in choices]
    options = request.sampling.get("stream_options")
    if reply.usage is not None and isinstance(options, dict) and options.get("include_usage"):
        chunks.append({**head, "choices": [], **_usage(reply)})
    return b"".join(b"data: %b\n\n" % _json(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def error_body(message: str) -> bytes:
    """Return the body of an error that clients do not answer with another try."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return _json({"error": error})


def models_body(models: tuple[str, ...]) -> bytes:
    """Return the answer to ``GET /models``."""
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "envweave"} for name in models]
    return _json({"object": "list", "data": rows})


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
