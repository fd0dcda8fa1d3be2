"""The model port under the real clients of OpenAI, Anthropic and Google: texts, tools, images, streams, retries."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from envweave_gym.programs.port import call as port_call
from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.reply import Reply, ToolCall

if any(find_spec(name) is None for name in ("openai", "anthropic", "google")):
    pytest.skip("the clients are not installed: run make trainers", allow_module_level=True)
pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings(
        "ignore:invalid escape sequence:DeprecationWarning"
    ),  # google-genai's types.py
]

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLS = Reply("let me see", [ToolCall("weather", {"city": "Rome"}), ToolCall("weather", {"city": "Oslo"})])
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
PNG_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


class Answers:
    """A port whose calls get the replies in turn, and the calls that came; the last reply is repeated."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [Reply("hello", usage={"prompt_tokens": 7, "completion_tokens": 2})]
        self.calls: list[Call] = []
        self.wait: Callable[[Call], None] = lambda call: None

    def receive(self, call: Call) -> None:
        self.calls.append(call)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        threading.Thread(target=self._answer, args=(call, reply), daemon=True).start()

    def _answer(self, call: Call, reply: Reply) -> None:
        self.wait(call)
        call.answer(reply)

    @property
    def last(self) -> Any:
        return self.calls[-1].request


@pytest.fixture
def answers() -> Answers:
    return Answers()


@contextmanager
def opened(answers: Answers, **options: float) -> Iterator[ModelPort]:
    port = ModelPort(answers.receive, ("m",), **options)  # pyright: ignore
    try:
        yield port
    finally:
        port.close()


@pytest.fixture
def port(answers: Answers) -> Iterator[ModelPort]:
    with opened(answers) as one:
        yield one


@pytest.fixture
def openai(port: ModelPort) -> Iterator[Any]:
    from openai import OpenAI

    with OpenAI(base_url=port.url(), api_key=port.token, max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(port: ModelPort) -> Iterator[Any]:
    from anthropic import Anthropic

    with Anthropic(base_url=port.root(), api_key=port.token, max_retries=0) as client:
        yield client


@contextmanager
def gemini_client(port: ModelPort) -> Iterator[Any]:
    from google import genai

    with genai.Client(api_key=port.token, http_options={"base_url": port.root()}) as client:
        yield client


@pytest.fixture
def gemini(port: ModelPort) -> Iterator[Any]:
    with gemini_client(port) as client:
        yield client


# OpenAI's chat completions and legacy completions

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}]


def test_chat_completions(openai: Any, answers: Answers):
    answer = openai.chat.completions.create(**CHAT, temperature=0.5, max_tokens=9, seed=3)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("hello", "stop")
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 9)
    assert answers.last.chat() == CHAT["messages"]
    assert answers.last.sampling == {"temperature": 0.5, "max_tokens": 9, "seed": 3}


def test_chat_completions_with_tools_and_images(openai: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    image = {"type": "image_url", "image_url": {"url": PNG_URL}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "where?"}, image]}]
    message = (
        openai.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS).choices[0].message
    )
    assert answers.last.messages[0].content[1] == image
    assert [call.function.arguments for call in message.tool_calls] == [
        '{"city": "Rome"}',
        '{"city": "Oslo"}',
    ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in message.tool_calls]
    openai.chat.completions.create(
        model="m", messages=[*messages, message, *results], tools=CHAT_TOOLS, parallel_tool_calls=False
    )
    roles = [one["role"] for one in answers.last.chat()]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert answers.last.tools == CHAT_TOOLS


def test_streamed_chat_completions(openai: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    with openai.chat.completions.stream(**CHAT, tools=CHAT_TOOLS) as stream:
        stream.until_done()
        choice = stream.get_final_completion().choices[0]
    assert (choice.message.content, choice.finish_reason) == ("let me see", "tool_calls")
    assert [call.function.arguments for call in choice.message.tool_calls] == [
        '{"city": "Rome"}',
        '{"city": "Oslo"}',
    ]
    chunks = list(openai.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == "hello"
    assert chunks[-1].usage.completion_tokens == 2


def test_log_probabilities(openai: Any, answers: Answers):
    answers.replies = [Reply("ab", tokens=["a", "b"], token_ids=[1, 2], logprobs=[-0.5, -1.0])]
    answer = openai.chat.completions.create(**CHAT, logprobs=True)
    assert [one.logprob for one in answer.choices[0].logprobs.content] == [-0.5, -1.0]
    assert openai.chat.completions.create(**CHAT).choices[0].logprobs is None
    answer = openai.completions.create(model="m", prompt="x", logprobs=1)
    assert answer.choices[0].logprobs.token_logprobs == [-0.5, -1.0]
    answer = openai.responses.create(model="m", input="x", include=["message.output_text.logprobs"])
    assert [one.token for one in answer.output[0].content[0].logprobs] == ["a", "b"]


def test_legacy_completions(openai: Any, answers: Answers):
    assert openai.completions.create(model="m", prompt="Once").choices[0].text == "hello"
    assert answers.last.chat() == [{"role": "user", "content": "Once"}]
    stream = openai.completions.create(model="m", prompt="Once", stream=True)
    assert "".join(one.choices[0].text for one in stream) == "hello"


def test_models_and_errors_of_openai(openai: Any, port: ModelPort):
    from openai import AuthenticationError, BadRequestError, NotFoundError, OpenAI

    assert [one.id for one in openai.models.list()] == ["m"]
    assert openai.models.retrieve("m").id == "m"
    with pytest.raises(BadRequestError, match="one completion at a time"):
        openai.chat.completions.create(**CHAT, n=2)
    with pytest.raises(NotFoundError):
        openai.embeddings.create(model="m", input="x")
    with (
        OpenAI(base_url=port.url(), api_key="wrong", max_retries=0) as other,
        pytest.raises(AuthenticationError),
    ):
        other.chat.completions.create(**CHAT)


# OpenAI's Responses

RESPONSES_TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]


def test_responses_that_go_on_from_each_other(openai: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    content = [{"type": "input_text", "text": "where?"}, {"type": "input_image", "image_url": PNG_URL}]
    first = openai.responses.create(
        model="m",
        instructions="be brief",
        input=[{"role": "user", "content": content}],
        tools=RESPONSES_TOOLS,
    )
    assert first.output_text == "let me see"
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"city": "Rome"}', '{"city": "Oslo"}']
    assert answers.last.tools[0]["function"]["name"] == "weather"
    outputs: Any = [
        {"type": "function_call_output", "call_id": one.call_id, "output": "sun"} for one in calls
    ]
    second = openai.responses.create(model="m", input=outputs, previous_response_id=first.id)
    assert (second.output_text, second.usage.input_tokens) == ("hello", 7)
    chat = answers.last.chat()
    assert [one["role"] for one in chat] == ["user", "assistant", "tool", "tool"]
    assert chat[0]["content"][1]["image_url"]["url"] == PNG_URL
    assert [call["id"] for call in chat[1]["tool_calls"]] == [one["tool_call_id"] for one in chat[2:]]


def test_responses_whose_output_is_sent_back(openai: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    chat: list[Any] = [{"role": "user", "content": "where?"}]
    chat += openai.responses.create(model="m", input=chat, tools=RESPONSES_TOOLS).output
    openai.responses.create(model="m", input=chat, tools=RESPONSES_TOOLS)
    sent = answers.last.chat()
    assert [one["role"] for one in sent] == ["user", "assistant"]
    assert (sent[1]["content"], len(sent[1]["tool_calls"])) == ("let me see", 2)


def test_streamed_responses(openai: Any, answers: Answers):
    answers.replies = [CALLS]
    with openai.responses.stream(model="m", input="where?", tools=RESPONSES_TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == "let me see"
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


# Anthropic's Messages

MESSAGES: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
ANTHROPIC_TOOLS: Any = [{"name": "weather", "description": "now", "input_schema": SCHEMA}]


def test_anthropic_messages_with_tools_and_images(anthropic: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    data = base64.b64encode(PNG).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "where?"}, image]}]
    options: dict[str, Any] = {**MESSAGES, "system": "be brief", "tools": ANTHROPIC_TOOLS}
    first = anthropic.messages.create(**{**options, "messages": messages})
    text, *calls = first.content
    assert (text.text, first.stop_reason) == ("let me see", "tool_use")
    assert [call.input for call in calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": [image]} for call in calls]
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = anthropic.messages.create(**{**options, "messages": messages}, tool_choice={"type": "any"})
    assert (second.content[0].text, second.usage.input_tokens, second.stop_reason) == ("hello", 7, "end_turn")
    chat = answers.last.chat()
    assert [one["role"] for one in chat] == ["system", "user", "assistant", "tool", "tool"]
    assert chat[3]["content"] == [{"type": "image_url", "image_url": {"url": PNG_URL}}]
    assert answers.last.sampling["tool_choice"] == "required"


def test_streamed_anthropic_messages(anthropic: Any, answers: Answers):
    answers.replies.insert(0, CALLS)
    with anthropic.messages.stream(**MESSAGES, tools=ANTHROPIC_TOOLS) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert (final.content[2].input, final.stop_reason) == ({"city": "Oslo"}, "tool_use")
    with anthropic.messages.stream(**MESSAGES) as stream:
        assert "".join(stream.text_stream) == "hello"


def test_counts_models_and_errors_of_anthropic(anthropic: Any):
    from anthropic import BadRequestError

    count = anthropic.messages.count_tokens(model="m", messages=MESSAGES["messages"])
    assert 0 < count.input_tokens < 20
    assert [one.id for one in anthropic.models.list()] == ["m"]
    with pytest.raises(BadRequestError) as caught:
        anthropic.messages.create(**{**MESSAGES, "tool_choice": {"type": "some"}})
    assert caught.value.body["error"]["type"] == "invalid_request_error"


# Gemini


def test_gemini_with_tools_and_images(gemini: Any, answers: Answers):
    from google.genai import types

    answers.replies.insert(0, CALLS)
    declaration = types.FunctionDeclaration(
        name="weather",
        description="now",
        parameters={"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    )
    config = types.GenerateContentConfig(
        system_instruction="be brief",
        tools=[types.Tool(function_declarations=[declaration])],
        max_output_tokens=9,
        stop_sequences=["END"],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    image = types.Part.from_bytes(data=PNG, mime_type="image/png")
    chat = gemini.chats.create(model="m", config=config)
    first = chat.send_message(["where?", image])
    assert [call.args for call in first.function_calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    assert answers.last.tools[0]["function"]["parameters"] == SCHEMA
    assert answers.last.messages[1].content[1]["image_url"]["url"] == PNG_URL
    results = [
        types.Part.from_function_response(name=call.name, response={"output": "sun"})
        for call in first.function_calls
    ]
    second = chat.send_message(results)
    assert (second.text, second.usage_metadata.prompt_token_count) == ("hello", 7)
    sent = answers.last.chat()
    assert [one["role"] for one in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert [one["id"] for one in sent[2]["tool_calls"]] == [one["tool_call_id"] for one in sent[3:]]
    assert {key: answers.last.sampling[key] for key in ("max_tokens", "stop")} == {
        "max_tokens": 9,
        "stop": ["END"],
    }


def test_streams_counts_log_probabilities_and_errors_of_gemini(gemini: Any, answers: Answers):
    from google.genai import errors, types

    chunks = list(gemini.models.generate_content_stream(model="m", contents="hi"))
    assert "".join(one.text or "" for one in chunks) == "hello"
    assert 0 < gemini.models.count_tokens(model="m", contents="hi").total_tokens < 20
    answers.replies = [Reply("a", token_ids=[5], tokens=["a"], logprobs=[-0.5])]
    config = types.GenerateContentConfig(response_logprobs=True)
    answer = gemini.models.generate_content(model="m", contents="hi", config=config)
    (chosen,) = answer.candidates[0].logprobs_result.chosen_candidates
    assert (chosen.token, chosen.token_id, chosen.log_probability) == ("a", 5, -0.5)
    with pytest.raises(errors.ClientError, match="INVALID_ARGUMENT"):
        gemini.models.generate_content(
            model="m", contents="hi", config=types.GenerateContentConfig(candidate_count=2)
        )


# Retries and slow answers


def retried(answers: Answers, ask: Callable[[], str]) -> None:
    """Ask by a client that gives up on its first attempt before there is an answer."""
    second = threading.Event()

    def wait(call: Call) -> None:
        while call.attempts < 2:
            second.wait(0.01)

    answers.wait = wait
    assert ask() == "hello"
    assert len(answers.calls) == 1


def test_retries_of_openai_and_anthropic_are_answered_once(
    port: ModelPort, answers: Answers, monkeypatch: pytest.MonkeyPatch
):
    from anthropic import Anthropic
    from openai import OpenAI

    # They say how long they wait: a port that heeds that sees no retry.
    monkeypatch.setattr(port_call, "_patience_s", lambda _: math.inf)
    given: Any = {"timeout": 0.5, "max_retries": 3}
    with OpenAI(base_url=port.url(), api_key=port.token, **given) as client:
        retried(answers, lambda: client.chat.completions.create(**CHAT).choices[0].message.content)  # pyright: ignore
    answers.calls.clear()
    with Anthropic(base_url=port.root(), api_key=port.token, **given) as client:
        retried(answers, lambda: client.messages.create(**MESSAGES).content[0].text)


def test_a_slow_answer_keeps_a_client_that_says_how_long_it_waits(port: ModelPort, answers: Answers):
    from openai import OpenAI

    def wait(call: Call) -> None:
        pause = threading.Event()
        while call._keep_alives < 3 and call.attempts < 2:
            pause.wait(0.01)

    answers.wait = wait
    with OpenAI(base_url=port.url(), api_key=port.token, max_retries=3, timeout=2.0) as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "hello"  # pyright: ignore
    assert [call.attempts for call in answers.calls] == [1]


def test_slow_answers_reach_every_client_in_json_and_as_streams(answers: Answers):
    from anthropic import Anthropic
    from openai import OpenAI

    def wait(call: Call) -> None:
        pause = threading.Event()
        while call._keep_alives < 3:
            pause.wait(0.01)

    answers.wait = wait
    with opened(answers, head_delay_s=0.05, keep_alive_s=0.05) as port:
        with OpenAI(base_url=port.url(), api_key=port.token, max_retries=0) as client:
            chat, respond = client.chat.completions, client.responses
            assert chat.create(**CHAT).choices[0].message.content == "hello"
            chunks = chat.create(**CHAT, stream=True)
            assert "".join(one.choices[0].delta.content or "" for one in chunks) == "hello"
            assert respond.create(model="m", input="hi").output_text == "hello"
            with respond.stream(model="m", input="hi") as stream:
                assert stream.get_final_response().output_text == "hello"
        with Anthropic(base_url=port.root(), api_key=port.token, max_retries=0) as client:
            assert client.messages.create(**MESSAGES).content[0].text == "hello"
            with client.messages.stream(**MESSAGES) as stream:
                assert stream.get_final_text() == "hello"
        with gemini_client(port) as client:
            assert client.models.generate_content(model="m", contents="hi").text == "hello"
            chunks = client.models.generate_content_stream(model="m", contents="hi")
            assert "".join(one.text or "" for one in chunks) == "hello"
    assert len(answers.calls) == 8
