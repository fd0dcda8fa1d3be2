"""The codecs: one conversation in five dialects is one request, and one reply is what each dialect's clients read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from envweave_gym.core.faults import InvalidAction
from envweave_gym.programs.dialects.dialect import BadRequest, fields_in
from envweave_gym.programs.dialects.routes import DIALECTS, route_of
from envweave_gym.programs.model_request import ModelRequest, estimated_tokens
from envweave_gym.programs.reply import Reply, ToolCall

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
PNG = "data:image/png;base64,iVBORw0KGgo="
ARGUMENTS = '{"path": "."}'
CALLS = [
    {"id": one, "type": "function", "function": {"name": "ls", "arguments": ARGUMENTS}}
    for one in ("c1", "c2")
]
TOOLS = [{"type": "function", "function": {"name": "ls", "description": "list", "parameters": SCHEMA}}]
LOOK = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PNG}}]
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": LOOK},
    {"role": "assistant", "content": "ok", "tool_calls": CALLS},
    {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
    {"role": "tool", "content": "b.py", "tool_call_id": "c2"},
    {"role": "user", "content": "go on"},
]
SAMPLING = {"max_tokens": 9, "temperature": 0.5, "stop": ["END"], "tool_choice": "required"}
CHAT = {"model": "m", "messages": MESSAGES, "tools": TOOLS, **SAMPLING}
RESPONSES = {
    "model": "m",
    "instructions": "be brief",
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": PNG}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        *(
            {"type": "function_call", "call_id": one, "name": "ls", "arguments": ARGUMENTS}
            for one in ("c1", "c2")
        ),
        {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "b.py"}],
        },
        {"type": "message", "role": "user", "content": "go on"},
    ],
    "tools": [{"type": "function", "name": "ls", "description": "list", "parameters": SCHEMA}],
    "max_output_tokens": 9,
    "temperature": 0.5,
    "stop": ["END"],
    "tool_choice": "required",
}
ANTHROPIC = {
    "model": "m",
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "ok"},
                *(
                    {"type": "tool_use", "id": one, "name": "ls", "input": {"path": "."}}
                    for one in ("c1", "c2")
                ),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "a.py"},
                {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "b.py"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ],
    "tools": [{"name": "ls", "description": "list", "input_schema": SCHEMA}],
    "max_tokens": 9,
    "temperature": 0.5,
    "stop_sequences": ["END"],
    "tool_choice": {"type": "any"},
}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "be brief"}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "look"},
                {"inline_data": {"mime_type": "image/png", "data": "iVBORw0KGgo="}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "ok"},
                *({"functionCall": {"id": one, "name": "ls", "args": {"path": "."}}} for one in ("c1", "c2")),
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.py"}}},
                {"functionResponse": {"id": "c2", "name": "ls", "response": {"result": "b.py"}}},
                {"text": "go on"},
            ],
        },
    ],
    "tools": [
        {
            "functionDeclarations": [
                {
                    "name": "ls",
                    "description": "list",
                    "parameters": {"type": "OBJECT", "properties": {"path": {"type": "STRING"}}},
                }
            ]
        }
    ],
    "generationConfig": {"maxOutputTokens": 9, "temperature": 0.5, "stopSequences": ["END"], "topK": None},
    "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
}
PATHS = {
    "chat_completions": ("/v1/chat/completions", CHAT),
    "responses": ("/v1/responses", RESPONSES),
    "anthropic_messages": ("/v1/messages", ANTHROPIC),
    "gemini": ("/v1beta/models/m:generateContent", GEMINI),
}
BARE = {
    "chat_completions": {"model": "m", "messages": []},
    "responses": {"model": "m", "input": []},
    "anthropic_messages": {"model": "m", "messages": []},
    "gemini": {"contents": []},
    "legacy_completions": {"model": "m", "prompt": "Once"},
}


def read(path: str, fields: dict[str, Any], query: str = "", history: Any = None) -> ModelRequest:
    body = json.dumps(fields).encode()
    route = route_of("POST", path, query, {})
    return route.dialect.read(fields_in(body), route.target(path, {}, body), history or {})


def bare(name: str, **fields: Any) -> ModelRequest:
    """A request of a dialect; ``stream=True`` asks Gemini's in the path."""
    if name == "gemini":
        method = "streamGenerateContent" if fields.pop("stream", False) else "generateContent"
        return read(f"/v1beta/models/m:{method}", {**BARE[name], **fields}, "alt=sse")
    path = {**{key: path for key, (path, _) in PATHS.items()}, "legacy_completions": "/v1/completions"}[name]
    return read(path, {**BARE[name], **fields})


def events(data: bytes) -> list[dict[str, Any]]:
    """The JSON data of server-sent events; a named event's name is its type."""
    found = []
    for one in data.decode().strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in one.split("\n"))
        if lines["data"] == "[DONE]":
            continue
        found.append(json.loads(lines["data"]))
        assert lines.get("event") in (None, found[-1].get("type"))
    return found


# Requests


def changed(value: Any, odd: Any) -> Iterator[Any]:
    """Copies of a JSON value, each with something odd in another place."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        for other in (odd, *changed(value[key], odd)):
            copy = {**value} if isinstance(value, dict) else [*value]
            copy[key] = other
            yield copy


SPECIAL = {
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "metadata": {"a": "b"},
    "n": 1,
    "store": True,
    "previous_response_id": "resp_1",
}
SPECIAL_TOOLS = [
    {"type": "namespace", "name": "one", "tools": [{"type": "function", "name": "f"}]},
    {"type": "custom", "name": "patch", "format": {"type": "text"}},
    {"type": "web_search", "web_search": {}},
]
SAMPLES = {
    "chat_completions": {**CHAT, **SPECIAL},
    "responses": {**RESPONSES, **SPECIAL, "tools": [*RESPONSES["tools"], *SPECIAL_TOOLS]},
    "anthropic_messages": {**ANTHROPIC, **SPECIAL, "tool_choice": {"type": "tool", "name": "ls"}},
    "gemini": {**GEMINI, "generationConfig": {**GEMINI["generationConfig"], "responseLogprobs": True}},
    "legacy_completions": {"model": "m", "prompt": ["Once"], **SPECIAL},
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("odd", [[], {}, 1, None, "x"], ids=str)
def test_odd_values_at_any_place_are_refused_or_answered(name: str, odd: Any):
    path = {"legacy_completions": ("/v1/completions",), **PATHS}[name][0]
    sampled = Reply("ab", token_ids=[7, 8], tokens=["a", "b"], logprobs=[-0.5, -1.5])
    replies = [sampled, Reply("ab", token_ids=[7, 8])]
    if name != "legacy_completions":
        replies.append(Reply("a", [ToolCall("ls", {}), ToolCall("f", {}), ToolCall("patch", {"input": "x"})]))
    for fields in changed(SAMPLES[name], odd):
        body = json.dumps(fields).encode()
        route = route_of("POST", path, "", {})
        try:
            request = route.dialect.request_in(route.target(path, {}, body), {"resp_1": ()})
        except BadRequest:
            continue
        assert json.dumps(route.dialect.count_body(request))
        assert request.chat() is not None
        for reply in replies:
            assert json.dumps(route.dialect.reply_body(request, reply, 1))
            assert route.dialect.reply_events(request, reply, 1, 0)


def test_bodies_that_are_too_deep_are_refused():
    for depth in (100, 500):
        schema = b'{"properties": ' * depth + b"{}" + b"}" * depth
        with pytest.raises(BadRequest, match="100 objects"):
            fields_in(b'{"tools": [%b]}' % schema)
    assert fields_in(b'{"tools": %b%b}' % (b"[" * 99, b"]" * 99))


@pytest.mark.parametrize("fields", [{"include": 1}, {"include": [1]}, {"tools": [{"type": ["function"]}]}])
def test_fields_that_would_break_the_reply_are_refused(fields: dict[str, Any]):
    with pytest.raises(BadRequest, match=next(iter(fields)) + "|type"):
        bare("responses", **fields)


def test_what_refers_to_a_store_of_openai_is_refused():
    for fields in ({"conversation": "conv_1"}, {"input": [{"type": "item_reference", "id": "msg_1"}]}):
        with pytest.raises(BadRequest, match="not supported"):
            bare("responses", **fields)


def test_log_probabilities_are_numbers_that_json_has():
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="logprobs has"):
            Reply("a", logprobs=[odd])
    reply = Reply("a", tokens=["a"], logprobs=[float("-inf")])
    for name, field in {
        "chat_completions": {"logprobs": True},
        "legacy_completions": {"logprobs": 1},
        "responses": {"include": ["message.output_text.logprobs"]},
        "gemini": {"generationConfig": {"responseLogprobs": True}},
    }.items():
        body = json.dumps(DIALECTS[name].reply_body(bare(name, **field), reply, 1), allow_nan=False)
        assert "-9999.0" in body


def test_token_ids_without_log_probabilities_are_answered():
    request = bare("responses", include=["message.output_text.logprobs"])
    body = DIALECTS["responses"].reply_body(request, Reply("a", token_ids=[1]), 1)
    assert body["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize("name", PATHS)
def test_a_conversation_is_the_same_request_in_every_dialect(name: str):
    path, fields = PATHS[name]
    request = read(path, fields)
    chat = [{key: value for key, value in one.items() if key != "name"} for one in request.chat()]
    assert chat == MESSAGES
    assert (request.dialect, request.model, request.tools) == (name, "m", TOOLS)
    assert {key: request.sampling[key] for key in SAMPLING} == SAMPLING
    assert json.loads(request.body) == fields
    assert request.has_instructions == (name != "chat_completions")
    assert len(request.digest) == 64


def test_a_legacy_prompt_is_one_message():
    request = bare("legacy_completions", prompt=["Once"], stop="\n", logprobs=2)
    assert request.chat() == [{"role": "user", "content": "Once"}]
    assert request.sampling == {"stop": ["\n"], "logprobs": 2}


def test_parameters_get_the_names_of_chat_completions():
    schema = {"name": "response", "schema": SCHEMA}
    form = {"type": "json_schema", "json_schema": schema}
    assert bare("chat_completions", max_completion_tokens=5).sampling == {"max_tokens": 5}
    text = {"format": {"type": "json_schema", **schema}, "verbosity": "low"}
    assert bare("responses", text=text).sampling == {"response_format": form, "text": {"verbosity": "low"}}
    config = {"responseJsonSchema": SCHEMA, "seed": 3, "candidateCount": 1, "thinkingConfig": {"a": 1}}
    expected = {"response_format": form, "seed": 3, "thinkingConfig": {"a": 1}}
    assert bare("gemini", generationConfig=config).sampling == expected
    one = {"type": "function", "function": {"name": "ls"}}
    choice = {"type": "tool", "name": "ls", "disable_parallel_tool_use": True}
    sampling = bare("anthropic_messages", tool_choice=choice).sampling
    assert sampling == {"tool_choice": one, "parallel_tool_calls": False}
    assert bare("responses", tool_choice={"type": "function", "name": "ls"}).sampling == {"tool_choice": one}


def test_images_come_through_results_of_tools():
    output = [{"type": "input_image", "image_url": PNG, "detail": "high"}]
    request = bare("responses", input=[{"type": "function_call_output", "call_id": "c1", "output": output}])
    image = {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}}
    assert request.messages[0].content == [image]
    block = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
    content = [{"type": "tool_result", "tool_use_id": "c1", "content": [block]}]
    request = bare("anthropic_messages", messages=[{"role": "user", "content": content}])
    assert request.chat() == [
        {
            "role": "tool",
            "content": [{"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}],
            "tool_call_id": "c1",
        }
    ]


def test_parts_that_no_form_has_are_retained():
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    request = bare("anthropic_messages", messages=[{"role": "assistant", "content": [thought]}])
    assert request.messages[0].content == [thought]
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert bare("responses", input=[item]).messages[0].content == [item]
    builtin = {"type": "bash_20250124", "name": "bash"}
    assert bare("anthropic_messages", tools=[builtin]).tools == [builtin]
    assert bare("gemini", tools=[{"googleSearch": {}}]).tools == [
        {"type": "googleSearch", "googleSearch": {}}
    ]


def test_gemini_images_in_base64_for_urls_become_data_urls():
    data = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    request = bare("gemini", contents=[{"parts": [data]}])
    assert request.messages[0].content == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/8="}}
    ]


def test_gemini_calls_without_ids_belong_to_results_in_order():
    called = [{"functionCall": {"name": "f", "args": {"n": n}}} for n in (1, 2)]
    answered = [{"functionResponse": {"name": "f", "response": {"output": str(n)}}} for n in (1, 2)]
    contents = [{"role": "model", "parts": called}, {"role": "user", "parts": answered}]
    first, *results = bare("gemini", contents=contents).messages
    assert [call["id"] for call in first.tool_calls or ()] == [one.tool_call_id for one in results]
    assert [one.content for one in results] == ["1", "2"]


def test_a_response_goes_on_from_an_earlier_one_without_its_instructions():
    before = read(*PATHS["responses"]).messages[1:]
    request = read(
        "/v1/responses",
        {"model": "m", "input": "more", "instructions": "new", "previous_response_id": "resp_7"},
        history={"resp_7": before},
    )
    assert [one.role for one in request.messages] == ["system", *(one.role for one in before), "user"]
    assert request.messages[0].content == "new"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("chat_completions", {"messages": "hi"}),
        ("chat_completions", {"messages": [{"content": "x"}]}),
        ("chat_completions", {"messages": [{"role": "user", "content": 3}]}),
        ("chat_completions", {"messages": [{"role": "assistant", "tool_calls": [3]}]}),
        ("chat_completions", {"model": 3}),
        ("chat_completions", {"n": 2}),
        ("responses", {"input": 3}),
        ("responses", {"input": [{"type": "function_call", "name": "f"}]}),
        ("responses", {"previous_response_id": "resp_9"}),
        ("responses", {"background": True}),
        ("responses", {"text": []}),
        ("anthropic_messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
        ("anthropic_messages", {"tools": [{"input_schema": {}}]}),
        ("anthropic_messages", {"tool_choice": {"type": "some"}}),
        ("gemini", {"contents": 3}),
        ("gemini", {"contents": [{"parts": [{"functionCall": 3}]}]}),
        ("gemini", {"generationConfig": {"candidateCount": 2}}),
        ("legacy_completions", {"prompt": [1, 2]}),
        ("legacy_completions", {"best_of": 2}),
    ],
)
def test_what_is_no_request_is_refused(name: str, fields: dict[str, Any]):
    with pytest.raises(BadRequest):
        bare(name, **fields)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_what_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(BadRequest):
        fields_in(body)


def test_lone_surrogates_of_a_program_do_not_break_observations():
    assert fields_in(b'{"content": "a\\ud800b"}') == {"content": "a?b"}


@pytest.mark.parametrize(
    ("path", "prefix", "name", "kind"),
    [
        ("/v1/chat/completions", "", "chat_completions", "complete"),
        ("/e3/v1/chat/completions", "e3", "chat_completions", "complete"),
        ("/chat/completions", "", "chat_completions", "complete"),
        ("/v1/completions", "", "legacy_completions", "complete"),
        ("/v1/v1/messages", "", "anthropic_messages", "complete"),
        ("/left/v1/messages/count_tokens", "left", "anthropic_messages", "count"),
        ("/v1/models/a%2Fb:generateContent", "", "gemini", "complete"),
        ("/left/v1beta/models/m:countTokens", "left", "gemini", "count"),
        ("/v1beta/models/m:embedContent", "", "gemini", ""),
        ("/v1/embeddings", "", "chat_completions", ""),
        ("/v1/messages/batches", "", "anthropic_messages", ""),
    ],
)
def test_a_path_finds_its_dialect(path: str, prefix: str, name: str, kind: str):
    route = route_of("POST", path, "", {})
    assert (route.dialect.name, route.kind, route.prefix) == (name, kind, prefix)


# Replies

REPLY = Reply("hello", [ToolCall("ls", {"path": "."}), ToolCall("ls", ARGUMENTS)])


def test_a_chat_reply_in_json_and_as_a_stream():
    dialect = DIALECTS["chat_completions"]
    body = dialect.reply_body(bare("chat_completions"), REPLY, 3)
    (choice,) = body["choices"]
    assert (body["object"], choice["finish_reason"]) == ("chat.completion", "tool_calls")
    assert choice["message"]["content"] == "hello"
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_3_0", "call_3_1"]
    assert choice["message"]["tool_calls"][1]["function"] == {"name": "ls", "arguments": ARGUMENTS}
    assert body["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
    request = bare("chat_completions", stream=True, stream_options={"include_usage": True})
    data = dialect.reply_events(request, REPLY, 3, 0)
    assert data.endswith(b"data: [DONE]\n\n")
    *chunks, last = events(data)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "hello"}]
    pieces = [delta["tool_calls"][0] for delta in deltas[2:-1]]
    assert [(one["index"], one.get("id")) for one in pieces] == [
        (0, "call_3_0"),
        (0, None),
        (1, "call_3_1"),
        (1, None),
    ]
    assert [one["function"]["arguments"] for one in pieces] == ["", ARGUMENTS, "", ARGUMENTS]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert (last["choices"], last["usage"]) == ([], body["usage"])


def test_a_response_in_json_and_as_a_stream():
    dialect = DIALECTS["responses"]
    body = dialect.reply_body(bare("responses"), REPLY, 3)
    assert (body["id"], body["object"], body["status"]) == ("resp_3", "response", "completed")
    assert [item["type"] for item in body["output"]] == ["message", "function_call", "function_call"]
    assert body["output"][0]["content"][0]["text"] == "hello"
    assert body["output"][2]["call_id"] == "call_3_1"
    stream = events(dialect.reply_events(bare("responses", stream=True), REPLY, 3, 0))
    assert [one["sequence_number"] for one in stream] == list(range(len(stream)))
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    assert [one["type"].removeprefix("response.") for one in stream] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *[*call, "output_item.done"] * 2,
        "completed",
    ]
    assert stream[-1]["response"] == body
    assert [one["item"] for one in stream if one["type"] == "response.output_item.done"] == body["output"]


@pytest.mark.parametrize("keep_alives", [1, 2, 5])
def test_a_slow_response_repeats_an_event_and_goes_on_counting(keep_alives: int):
    dialect, request = DIALECTS["responses"], bare("responses", stream=True)
    pieces = [dialect.keep_alive(request, 3, number) for number in range(keep_alives)]
    stream = events(b"".join([*pieces, dialect.reply_events(request, REPLY, 3, keep_alives)]))
    assert [one["sequence_number"] for one in stream] == list(range(len(stream)))
    kinds = [one["type"] for one in stream]
    assert kinds[: keep_alives + 1] == ["response.created", *["response.in_progress"] * keep_alives]
    assert kinds.count("response.created") == 1
    assert kinds[-1] == "response.completed"


def test_an_anthropic_message_in_json_and_as_a_stream():
    dialect = DIALECTS["anthropic_messages"]
    body = dialect.reply_body(bare("anthropic_messages"), REPLY, 3)
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "tool_use")
    assert body["content"][0] == {"type": "text", "text": "hello"}
    assert body["content"][2] == {"type": "tool_use", "id": "call_3_1", "name": "ls", "input": {"path": "."}}
    stream = events(dialect.reply_events(bare("anthropic_messages", stream=True), REPLY, 3, 0))
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    kinds = ["message_start", *block * 3, "message_delta", "message_stop"]
    assert [one["type"] for one in stream] == kinds
    assert stream[0]["message"]["content"] == []
    assert stream[4]["content_block"]["input"] == {}
    assert json.loads(stream[5]["delta"]["partial_json"]) == {"path": "."}
    assert stream[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_gemini_reply_in_json_as_a_stream_and_as_an_array():
    dialect = DIALECTS["gemini"]
    body = dialect.reply_body(bare("gemini"), REPLY, 3)
    (candidate,) = body["candidates"]
    text, _, call = candidate["content"]["parts"]
    assert (text, candidate["finishReason"], candidate["content"]["role"]) == (
        {"text": "hello"},
        "STOP",
        "model",
    )
    assert call == {"functionCall": {"id": "call_3_1", "name": "ls", "args": {"path": "."}}}
    assert body["usageMetadata"].keys() == {"promptTokenCount", "candidatesTokenCount", "totalTokenCount"}
    assert events(dialect.reply_events(bare("gemini", stream=True), REPLY, 3, 0)) == [body]
    request = read("/v1beta/models/m:streamGenerateContent", {"contents": []})
    assert json.loads(dialect.reply_events(request, REPLY, 3, 0)) == [body]
    assert dialect.content_type(request) == "application/json"


def test_a_legacy_reply_in_json_and_as_a_stream():
    dialect = DIALECTS["legacy_completions"]
    body = dialect.reply_body(bare("legacy_completions"), Reply("upon"), 3)
    assert (body["object"], body["choices"][0]["text"]) == ("text_completion", "upon")
    stream = events(dialect.reply_events(bare("legacy_completions", stream=True), Reply("upon"), 3, 0))
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == "upon"
    assert stream[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", DIALECTS)
def test_an_empty_reply_is_an_empty_text(name: str):
    dialect = DIALECTS[name]
    body = dialect.reply_body(bare(name), Reply(), 1)
    texts = {
        "chat_completions": lambda: body["choices"][0]["message"]["content"],
        "legacy_completions": lambda: body["choices"][0]["text"],
        "responses": lambda: [part["text"] for item in body["output"] for part in item["content"]],
        "anthropic_messages": lambda: [block["text"] for block in body["content"]],
        "gemini": lambda: [part["text"] for part in body["candidates"][0]["content"]["parts"]],
    }
    assert texts[name]() in ("", [""])
    stream = events(dialect.reply_events(bare(name, stream=True), Reply(), 1, 0))
    last = {
        "chat_completions": lambda: stream[-1]["choices"][0]["finish_reason"] == "stop",
        "legacy_completions": lambda: stream[-1]["choices"][0]["finish_reason"] == "stop",
        "responses": lambda: stream[-1]["response"]["output"] == body["output"],
        "anthropic_messages": lambda: (
            [one["type"] for one in stream][-2:] == ["message_delta", "message_stop"]
        ),
        "gemini": lambda: stream == [body],
    }
    assert last[name]()


@pytest.mark.parametrize(
    ("name", "field", "length", "filtered"),
    [
        ("chat_completions", "finish_reason", "length", "content_filter"),
        ("legacy_completions", "finish_reason", "length", "content_filter"),
        ("responses", "status", "incomplete", "incomplete"),
        ("anthropic_messages", "stop_reason", "max_tokens", "refusal"),
        ("gemini", "finishReason", "MAX_TOKENS", "SAFETY"),
    ],
)
def test_finish_reasons_have_each_dialects_name(name: str, field: str, length: str, filtered: str):
    dialect = DIALECTS[name]
    for reason, expected in (("length", length), ("content_filter", filtered)):
        body = dialect.reply_body(bare(name), Reply("x", finish_reason=reason), 1)  # pyright: ignore
        owner = (body.get("choices") or body.get("candidates") or [body])[0]
        assert owner[field] == expected
    stream = dialect.reply_events(bare(name, stream=True), Reply("x", finish_reason="length"), 1, 0)
    assert length.encode() in stream


def test_log_probabilities_travel_only_where_they_are_requested():
    reply = Reply("ab", token_ids=[7, 8], tokens=["a", "b"], logprobs=[-0.5, -1.5])
    requests = {
        "chat_completions": bare("chat_completions", logprobs=True),
        "legacy_completions": bare("legacy_completions", logprobs=0),
        "responses": bare("responses", include=["message.output_text.logprobs"]),
        "gemini": bare("gemini", generationConfig={"responseLogprobs": True}),
    }
    for name, request in requests.items():
        assert "-1.5" in json.dumps(DIALECTS[name].reply_body(request, reply, 1)), name
    for name, dialect in DIALECTS.items():
        body = json.dumps([dialect.reply_body(bare(name), reply, 1)])
        assert "-1.5" not in body
        assert "token_ids" not in body
    body = DIALECTS["chat_completions"].reply_body(requests["chat_completions"], reply, 1)
    first = body["choices"][0]["logprobs"]["content"][0]
    assert first == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    stream = DIALECTS["chat_completions"].reply_events(bare("chat_completions", logprobs=True), reply, 1, 0)
    assert b"-1.5" in stream
    with pytest.raises(ValueError, match="length"):
        Reply("a", token_ids=[1], logprobs=[-0.5, -1.0])


def test_replies_that_a_dialect_cannot_carry_are_invalid_actions():
    listed = Reply(tool_calls=[ToolCall("ls", "[1]")])
    for name in ("anthropic_messages", "gemini"):
        with pytest.raises(InvalidAction, match="JSON object"):
            DIALECTS[name].check(listed)
    with pytest.raises(InvalidAction, match="tool calls"):
        DIALECTS["legacy_completions"].check(REPLY)
    for name in ("chat_completions", "responses"):
        DIALECTS[name].check(listed)


def test_tools_of_namespaces_and_custom_tools_are_called_in_their_own_way():
    inner = [{"type": "function", "name": "spawn", "parameters": SCHEMA}]
    tools = [
        {"type": "namespace", "name": "one", "tools": inner},
        {"type": "namespace", "name": "two", "tools": inner},
        {"type": "custom", "name": "patch", "description": "apply", "format": {"type": "text"}},
        {"type": "web_search"},
    ]
    request = bare("responses", tools=tools)
    names = [tool[tool["type"]]["name"] for tool in request.tools[:3]]
    assert names == ["spawn", "two.spawn", "patch"]
    beside = bare("responses", tools=[*tools[:1], {"type": "function", "name": "spawn"}])
    assert [tool["function"]["name"] for tool in beside.tools] == ["one.spawn", "spawn"]
    given = Reply(tool_calls=[ToolCall("one.spawn"), ToolCall("spawn")])
    items = DIALECTS["responses"].reply_body(beside, given, 1)["output"]
    assert [(item["name"], item.get("namespace")) for item in items] == [("spawn", "one"), ("spawn", None)]
    assert request.tools[3] == {"type": "web_search"}
    calls = [ToolCall("spawn"), ToolCall("two.spawn"), ToolCall("patch", {"input": "*** Begin"})]
    reply = Reply(tool_calls=[*calls, ToolCall("patch", "*** End")])
    items = DIALECTS["responses"].reply_body(request, reply, 1)["output"]
    assert [(item["name"], item.get("namespace")) for item in items[:2]] == [
        ("spawn", "one"),
        ("spawn", "two"),
    ]
    assert [item["input"] for item in items[2:]] == ["*** Begin", "*** End"]
    assert {item["type"] for item in items[2:]} == {"custom_tool_call"}
    stream = events(DIALECTS["responses"].reply_events(request, reply, 1, 0))
    assert "response.custom_tool_call_input.done" in [one["type"] for one in stream]


def test_estimates_are_modest_about_images():
    request = read(*PATHS["chat_completions"])
    assert 10 < estimated_tokens(request.messages, request.tools) < 200
    huge = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 1_000_000}"}}
    request = bare("chat_completions", messages=[{"role": "user", "content": [huge]}])
    assert estimated_tokens(request.messages) < 100
    assert DIALECTS["anthropic_messages"].count_body(request)["input_tokens"] < 100
    assert DIALECTS["gemini"].count_body(request)["totalTokens"] < 100


@pytest.mark.parametrize("name", DIALECTS)
def test_errors_have_types_that_clients_do_not_try_again(name: str):
    body = DIALECTS[name].error_body(400, "no")
    assert body["error"]["message"] == "no"
    error = body["error"]
    assert (error.get("type") or error["status"]) in ("invalid_request_error", "INVALID_ARGUMENT")
