"""Codec of Gemini's ``generateContent`` and ``streamGenerateContent``; fields in camel case or with underscores.

Calls may come without IDs: then a result belongs to the earliest call of its name that has none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from envweave_gym.episode.message import Message
from envweave_gym.programs.dialects.dialect import (
    Dialect,
    Fields,
    History,
    Target,
    check_one,
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
from envweave_gym.programs.model_request import ModelRequest, estimated_tokens
from envweave_gym.programs.reply import Reply, arguments_object

_NAMES = {
    "maxOutputTokens": "max_tokens",
    "topP": "top_p",
    "topK": "top_k",
    "stopSequences": "stop",
    "responseLogprobs": "logprobs",
    "logprobs": "top_logprobs",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
_CHOICES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
_STATUSES = {401: "UNAUTHENTICATED", 404: "NOT_FOUND"}
_UNDERSCORE = re.compile(r"_([a-z])")
_STANDARD = str.maketrans("-_", "+/")
"""From the alphabet of Base64 for URLs, which Google's client sends, to that of data URLs."""
_WRAPPED = ("output", "result")
"""The one key of a function's response whose text is the result itself."""


class Gemini(Dialect):
    """``POST /v1beta/models/MODEL:generateContent``, and its stream."""

    name = "gemini"

    def read(self, fields: Fields, target: Target, history: History) -> ModelRequest:
        """Return the request in a body; raise :class:`BadRequest` if it is none."""
        # Requests for a count may wrap that of the completion.
        fields = _camel(
            object_in(_camel(fields).get("generateContentRequest"), "generateContentRequest") or fields
        )
        messages = _messages(fields.pop("contents", None))
        system = fields.pop("systemInstruction", None)
        if not isinstance(system, str):
            system = content_of(_parts(object_in(system, "systemInstruction")))
        tools = _tools(fields.pop("tools", None) or [])
        config = _camel(object_in(fields.pop("generationConfig", None), "generationConfig"))
        check_one(config.pop("candidateCount", None), "candidateCount")
        sampling = renamed(config, _NAMES)
        _read_format(sampling)
        _read_choice(fields, sampling)
        fields.pop("model", None)
        sampling |= renamed(fields, {})
        if target.is_array:
            sampling["alt"] = "json"
        return self.made(target, target.model, messages, tools, sampling, target.is_stream, system)

    def content_type(self, request: ModelRequest) -> str:
        """Return the media type of a reply."""
        is_array = request.sampling.get("alt") == "json"
        return "application/json" if is_array else super().content_type(request)

    def check(self, reply: Reply) -> None:
        """Refuse calls whose arguments are not objects."""
        for call in reply.tool_calls:
            arguments_object(call)

    def reply_body(self, request: ModelRequest, reply: Reply, number: int) -> Fields:
        """Return the body of a reply."""
        prompt, completion = usage_of(request, reply)
        candidate = {
            "content": {"role": "model", "parts": _reply_parts(reply, number)},
            "finishReason": _FINISH_REASONS[reply.finished_by],
            "index": 0,
            **_logprobs(request, reply),
        }
        usage = {
            "promptTokenCount": prompt,
            "candidatesTokenCount": completion,
            "totalTokenCount": prompt + completion,
        }
        return {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": request.model,
            "responseId": f"response_{number}",
        }

    def reply_events(self, request: ModelRequest, reply: Reply, number: int, keep_alives: int) -> bytes:
        """Return the stream of a reply: one event, which is the body of a reply."""
        body = self.reply_body(request, reply, number)
        return json.dumps([body]).encode() if request.sampling.get("alt") == "json" else event(body)

    def error_body(self, status: int, text: str) -> Fields:
        """Return the body of an error."""
        name = _STATUSES.get(status, "INVALID_ARGUMENT")
        return {"error": {"code": status, "message": text, "status": name}}

    def count_body(self, request: ModelRequest) -> Fields:
        """Return the answer to a request that asks how many tokens its prompt has."""
        return {"totalTokens": estimated_tokens(request.messages, request.tools)}


def _camel(fields: Fields) -> Fields:
    """Return an object whose keys are in camel case."""
    return {_UNDERSCORE.sub(lambda found: found[1].upper(), key): value for key, value in fields.items()}


def _reply_parts(reply: Reply, number: int) -> list[Fields]:
    calls = [
        {"functionCall": {"id": wire["id"], "name": call.name, "args": arguments_object(call)}}
        for call, wire in zip(reply.tool_calls, reply.wire_calls(number), strict=True)
    ]
    return [*([{"text": reply.content or ""}] if reply.content or not calls else []), *calls]


def _logprobs(request: ModelRequest, reply: Reply) -> Fields:
    if not request.sampling.get("logprobs") or not reply.logprobs:
        return {}
    sampled = reply.sampled()
    chosen = [
        {"token": token, "logProbability": logprob, **({} if token_id is None else {"tokenId": token_id})}
        for token, token_id, logprob in sampled
    ]
    mean = sum(logprob for _, _, logprob in sampled) / len(sampled)
    return {"avgLogprobs": mean, "logprobsResult": {"chosenCandidates": chosen, "topCandidates": []}}


# Reading


def _messages(contents: Any) -> list[Message]:
    if isinstance(contents, str):
        return [Message("user", contents)]
    messages, unanswered, calls = list[Message](), list[tuple[str, str]](), 0
    for content in objects([contents] if isinstance(contents, dict) else contents, "contents"):
        role = {"model": "assistant"}.get(content.get("role", "user"), content.get("role", "user"))
        others, called = list[Fields](), list[Fields]()
        for part in map(_camel, objects(content.get("parts") or [], "parts")):
            if "functionCall" in part:
                calls += 1
                call = _call(_camel(object_in(part["functionCall"], "functionCall")), calls)
                called.append(call)
                unanswered.append((call["function"]["name"], call["id"]))
            elif "functionResponse" in part:
                response = _camel(object_in(part["functionResponse"], "functionResponse"))
                messages.append(_result(response, unanswered))
            else:
                others.append(_part(part))
        if called or others:
            messages.append(
                Message(text(role, "role"), content_of(others) if others else None, called or None)
            )
    return messages


def _call(call: Fields, number: int) -> Fields:
    arguments = json.dumps(object_in(call.get("args"), "args"))
    return function_call(call.get("id") or f"unnamed_{number}", call.get("name"), arguments)


def _result(response: Fields, unanswered: list[tuple[str, str]]) -> Message:
    """Return the message of a function's response, and remove its call from those that are not answered."""
    name, given = text(response.get("name"), "name"), response.get("id")
    call_id = given or next((call_id for called, call_id in unanswered if called == name), None)
    unanswered[:] = [one for one in unanswered if one[1] != call_id]
    value = response.get("response")
    if isinstance(value, dict) and len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        value = only if next(iter(value)) in _WRAPPED else value
    content: Any = value if isinstance(value, str) else json.dumps(value)
    if parts := [_part(_camel(one)) for one in objects(response.get("parts") or [], "parts")]:
        content = [text_part(content), *parts]
    return Message("tool", content, tool_call_id=text(call_id or name, "id"), name=name)


def _parts(content: Fields) -> list[Fields]:
    return [_part(_camel(part)) for part in objects(content.get("parts") or [], "parts")]


def _part(part: Fields) -> Fields:
    if part.keys() == {"text"}:
        return text_part(part["text"])
    if "inlineData" in part:
        data = _camel(object_in(part["inlineData"], "inlineData"))
        if str(data.get("mimeType")).startswith("image/"):
            encoded = text(data.get("data"), "data").translate(_STANDARD)
            return image_part(data_url(data["mimeType"], encoded))
    if "fileData" in part:
        data = _camel(object_in(part["fileData"], "fileData"))
        if str(data.get("mimeType")).startswith("image/"):
            return image_part(text(data.get("fileUri"), "fileUri"))
    if "text" in part:  # a thought, or a text with a signature
        return {"type": "text", **part}
    return {"type": next(iter(part), "empty"), **part}


def _tools(given: Any) -> list[Fields]:
    tools = list[Fields]()
    for one in map(_camel, objects(given, "tools")):
        for function in map(
            _camel, objects(one.pop("functionDeclarations", None) or [], "functionDeclarations")
        ):
            schema = function.get("parametersJsonSchema")
            schema = _json_schema(function.get("parameters")) if schema is None else schema
            tools.append(function_tool(function.get("name"), function.get("description"), schema))
        tools += [{"type": key, key: value} for key, value in one.items() if value is not None]
    return tools


def _json_schema(value: Any) -> Any:
    """Return a schema in Gemini's form, with types such as ``STRING``, as a JSON schema."""
    if isinstance(value, list):
        return [_json_schema(one) for one in value]
    if isinstance(value, dict):
        return {
            key: one.lower() if key == "type" and isinstance(one, str) else _json_schema(one)
            for key, one in value.items()
        }
    return value


def _read_format(sampling: Fields) -> None:
    """Move schema and media type of the reply to ``response_format``, in the form of chat completions."""
    schema = sampling.pop("responseJsonSchema", None) or _json_schema(sampling.pop("responseSchema", None))
    if schema is not None:
        sampling["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "response", "schema": schema},
        }
    elif sampling.get("responseMimeType") == "application/json":
        sampling["response_format"] = {"type": "json_object"}


def _read_choice(fields: Fields, sampling: Fields) -> None:
    config = _camel(object_in(fields.pop("toolConfig", None), "toolConfig"))
    calling = _camel(object_in(config.pop("functionCallingConfig", None), "functionCallingConfig"))
    names = calling.get("allowedFunctionNames") or []
    mode = _CHOICES.get(str(calling.get("mode", "")))
    if mode == "required" and isinstance(names, list) and len(names) == 1:
        sampling["tool_choice"] = {"type": "function", "function": {"name": text(names[0], "name")}}
    elif mode is not None:
        sampling["tool_choice"] = mode
    if names:
        sampling["allowed_function_names"] = names
    if config:
        sampling["toolConfig"] = config
