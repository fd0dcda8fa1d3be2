"""Sampling of continuations: batched, with a cache of keys and values, each request with noise of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from envweave_gym_server.tinker.models.llama import ModelConfig, Transformer
from envweave_gym_server.tinker.models.lora import FrozenAdapter

StopReason = Literal["stop", "length"]
TokenLogprobs = list[tuple[int, float]]
"""The most probable tokens of one position with their log-probabilities, the best first."""


@dataclass(frozen=True)
class SampleRequest:
    """One prompt to continue ``count`` times.

    Sample ``i`` draws its noise from ``(seed, i)``, so that it does not depend on other requests. A stop token
    is part of the tokens; temperature 0 is greedy. Log-probabilities are those of the model itself, before
    temperature, ``top_k`` and ``top_p``.
    """

    prompt: Sequence[int]
    count: int = 1
    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    prompt_logprobs: bool = False
    top_logprobs: int = 0
    """How many of the most probable tokens to return for each sampled token."""
    top_prompt_logprobs: int = 0
    """How many of the most probable tokens to return for each token of the prompt."""


@dataclass(frozen=True)
class SampledSequence:
    """One continuation."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: StopReason
    top_logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])


@dataclass(frozen=True)
class SampleResult:
    """The continuations of one request; the first prompt token has no log-probability."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    top_prompt_logprobs: list[TokenLogprobs | None] | None = None


def check_request(config: ModelConfig, request: SampleRequest) -> None:
    """Raise ``ValueError`` if the model cannot serve the request: tokens, length, or a parameter out of range."""
    raise NotImplementedError


def sample(
    transformer: Transformer,
    adapter: FrozenAdapter | None,
    requests: Sequence[SampleRequest],
    decode: Callable[[list[int]], str],
) -> list[SampleResult]:
    """Continue all prompts in one batch and return the results in the order of the requests.

    ``decode`` turns tokens into text, special tokens included; it is used only for stop strings. At the end of
    the model's context a sequence ends with reason ``length``. Large batches are cut in pieces.
    """
    raise NotImplementedError
