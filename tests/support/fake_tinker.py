"""A tokenizer of single characters, and a sampling client of the shape of the SDK's that answers by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from envweave_gym.training.tinker.episodes import Policies, Task
from envweave_gym.training.tinker.prompts import Prompts
from envweave_gym.training.tinker.sampling import Sampler, SharedRequest

SPECIAL = ("<|im_start|>", "<|im_end|>")
START, END = 0x110000, 0x110001


class Characters:
    """Tokens are code points; the two special tokens of ChatML follow them."""

    eos_token_id = END
    chat_template = "ChatML"

    def __init__(self, *, strips_thoughts: bool = False) -> None:
        self.encoded: list[str] = []
        self._strips_thoughts = strips_thoughts

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        self.encoded.append(text)
        tokens: list[int] = []
        while text:
            special = next((one for one in SPECIAL if text.startswith(one)), None)
            tokens.append(START + SPECIAL.index(special) if special else ord(text[0]))
            text = text[len(special or "x") :]
        return tokens

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        assert not skip_special_tokens
        return "".join(SPECIAL[token - START] if token >= START else chr(token) for token in tokens)

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        text = ""
        for message in messages:
            content = message["content"]
            if self._strips_thoughts and message is not messages[-1]:
                content = content.rpartition("</think>")[2]
            text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
        return text + "<|im_start|>assistant\n" * add_generation_prompt


@dataclass
class Sequence_:
    tokens: list[int]
    logprobs: list[float]
    stop_reason: str = "stop"


@dataclass
class Response:
    sequences: list[Sequence_]


@dataclass
class Request:
    prompt: list[int]
    count: int
    seed: int
    temperature: float


class FakeClient:
    """Answers each request by ``reply(prompt text, seed, index)``."""

    def __init__(self, reply: Callable[[str, int, int], str], *, ends: bool = True) -> None:
        self.requests: list[Request] = []
        self._reply, self._ends, self._lock = reply, ends, threading.Lock()

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Future[Response]:
        request = Request(prompt.to_ints(), num_samples, sampling_params.seed, sampling_params.temperature)
        with self._lock:
            self.requests.append(request)
        text = Characters().decode(request.prompt, False)
        replies = [self._reply(text, request.seed, index) for index in range(num_samples)]
        future: Future[Response] = Future()
        future.set_result(Response([self._sequence(one) for one in replies]))
        return future

    def _sequence(self, reply: str) -> Sequence_:
        tokens = Characters().encode(reply, False) + [END] * self._ends
        return Sequence_(tokens, [-0.25 - index for index in range(len(tokens))])


def sampler(client: FakeClient, **settings: Any) -> Sampler:
    return Sampler(client, lambda future: future.result(), **{"max_tokens": 64, "stop": [END], **settings})


def policies(client: FakeClient, max_prompt_tokens: int = 0) -> Policies:
    one = sampler(client)
    return Policies(Prompts(Characters()), lambda agent: one, max_prompt_tokens)


def group(size: int, *, seed: int = 7, index: int = 0) -> list[Task]:
    first_request = SharedRequest(size, 1000 + index)
    return [Task(("train", index), index, member, seed, first_request) for member in range(size)]
