"""Sampling of continuations: batched, with a cache of keys and values, each request with noise of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envweave_gym_server.tinker.models.decoding_batch import DecodingBatch, token_limit
from envweave_gym_server.tinker.models.llama import LowRankWeights, ModelConfig, Transformer, precision_for
from envweave_gym_server.tinker.models.lora import FrozenAdapter
from envweave_gym_server.tinker.models.prefix_packing import common_prefix_length
from envweave_gym_server.tinker.models.prompt_scores import PromptScores, PromptTargets, score_prompt
from envweave_gym_server.tinker.models.token_choice import ChoiceRules, TokenLogprobs, choose, top_logprobs

StopReason = Literal["stop", "length"]
MAX_BATCH_SEQUENCES = 256
"""Most sequences that are continued at once: their logits are in memory together."""
LOWEST_TEMPERATURE = 1e-6
"""Logits that are divided by less overflow."""
MAX_TOP_LOGPROBS = 100
"""Most probable tokens that are returned for each position."""
_ASSUMED_TOKENS = 64
"""Tokens reserved for a new sequence; it is suspended if it gets longer and the cache is full."""
_SLACK_TOKENS = 8
"""Tokens decoded before a stop string, whose first character they may hold in part."""


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
    prompt_targets: PromptTargets | None = field(default=None, compare=False)


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
    target_logprobs: NDArray[np.float32] | None = field(default=None, compare=False)


class _Sequence:
    """One continuation in progress."""

    def __init__(
        self, config: ModelConfig, request: SampleRequest, index: int, is_wanted: Callable[[], bool]
    ) -> None:
        self.request, self.index, self._is_wanted = request, index, is_wanted
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TokenLogprobs] = []
        self.stop_reason: StopReason | None = None
        self.scores = PromptScores()
        self.limit = min(request.max_tokens, config.context - len(request.prompt))
        self.rules = ChoiceRules(request.temperature, request.top_k, request.top_p)

    @cached_property
    def noise(self) -> NDArray[np.float64]:
        """Noise for each token, drawn when the sequence begins and dropped at its end."""
        key = np.array([self.request.seed % 2**64, self.index], np.uint64)
        return np.random.Generator(np.random.Philox(key=key)).random(self.limit)

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended, and somebody wants it still."""
        return self.stop_reason is None and self._is_wanted()

    def add(self, token: int, logprob: float, decode: Callable[[list[int]], str]) -> None:
        """Append a token, and set the reason if the sequence ends with it."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.request.stop_ids or self._has_stop_string(decode):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.stop_reason = "length"
        if self.stop_reason is not None:
            del self.noise

    def _has_stop_string(self, decode: Callable[[list[int]], str]) -> bool:
        """Return whether a stop string is in the last tokens; every token of one has a byte at least."""
        strings = self.request.stop_strings
        if not strings:
            return False
        text = decode(self.tokens[-max(len(string.encode()) for string in strings) - _SLACK_TOKENS :])
        return any(string in text for string in strings)

    def result(self) -> SampledSequence:
        return SampledSequence(self.tokens, self.logprobs, self.stop_reason or "length", self.top_logprobs)


def check_request(config: ModelConfig, request: SampleRequest) -> None:
    """Raise ``ValueError`` if the model cannot serve the request: tokens, length, or a parameter out of range."""
    length = len(request.prompt)
    if not 0 < length < config.context:
        raise ValueError(f"the prompt has {length} tokens; the model takes 1 to {config.context - 1}")
    check_tokens(config, request.prompt, "the prompt")
    for name in ("count", "max_tokens"):
        if getattr(request, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(request, name)}")
    most = min(config.vocabulary, MAX_TOP_LOGPROBS)
    for name in ("top_logprobs", "top_prompt_logprobs"):
        if not 0 <= getattr(request, name) <= most:
            raise ValueError(f"{name} must be 0 to {most}, not {getattr(request, name)}")
    if request.temperature != 0 and not LOWEST_TEMPERATURE <= request.temperature < float("inf"):
        raise ValueError(
            f"temperature must be 0 (greedy) or from {LOWEST_TEMPERATURE} on, not {request.temperature}"
        )
    if not 0 < request.top_p <= 1:
        raise ValueError(f"top_p must be more than 0 and at most 1, not {request.top_p}")


def check_tokens(config: ModelConfig, tokens: Sequence[int], name: str) -> None:
    """Raise ``ValueError`` if a token is not in the vocabulary."""
    # Python's integers, because a token from JSON may have more than 64 bits.
    if len(tokens) and not 0 <= min(tokens) <= max(tokens) < config.vocabulary:
        wrong = next(token for token in tokens if not 0 <= token < config.vocabulary)
        raise ValueError(f"{name} has the token {wrong}; the model has tokens 0 to {config.vocabulary - 1}")


@torch.inference_mode()
def sample(
    transformer: Transformer,
    adapter: FrozenAdapter | None,
    requests: Sequence[SampleRequest],
    decode: Callable[[list[int]], str],
    is_wanted: Callable[[int], bool] = lambda _: True,
) -> list[SampleResult]:
    """Continue all prompts in one batch and return the results in the order of the requests.

    ``is_wanted`` is asked before each token for the index of a request, whose sequences end early if it is not.
    ``decode`` turns tokens into text, special tokens included; it is used only for stop strings. At the end of
    the model's context a sequence ends with reason ``length``. Large batches are cut in pieces.
    """
    for request in requests:
        check_request(transformer.config, request)
    weights = adapter.weights if adapter is not None else {}
    sequences = [
        [
            _Sequence(transformer.config, request, index, partial(is_wanted, number))
            for index in range(request.count)
        ]
        for number, request in enumerate(requests)
    ]
    waiting = [sequence for group in sequences for sequence in group]
    with precision_for(transformer.config):
        while waiting := [sequence for sequence in waiting if sequence.goes_on]:
            batch, waiting = _admitted(transformer.config, waiting)
            waiting = _continue(transformer, weights, batch, decode) + waiting
    return [SampleResult([sequence.result() for sequence in group], *group[0].scores) for group in sequences]


def _admitted(config: ModelConfig, waiting: list[_Sequence]) -> tuple[list[_Sequence], list[_Sequence]]:
    """Split off the first sequences that fit in a batch: one at least."""
    limit, own = token_limit(config), 0
    prompts: set[tuple[int, ...]] = set()
    first = np.array([*waiting[0].request.prompt, *waiting[0].tokens], np.int64)
    common = longest = len(first)
    for count, sequence in enumerate(waiting):
        known = (*sequence.request.prompt, *sequence.tokens)
        own += min(_ASSUMED_TOKENS, sequence.limit - len(sequence.tokens))
        if known not in prompts:
            prompts.add(known)
            common = min(common, common_prefix_length(first, np.array(known, np.int64)))
            longest = max(longest, len(known))
        # What follows the common prefix is padded to the longest prompt.
        needed = common + len(prompts) * (longest - common) + own
        if count and (needed > limit or count >= MAX_BATCH_SEQUENCES):
            return waiting[:count], waiting[count:]
    return waiting, []


def _continue(
    transformer: Transformer,
    weights: LowRankWeights,
    sequences: list[_Sequence],
    decode: Callable[[list[int]], str],
) -> list[_Sequence]:
    """Continue sequences to their ends; return those that the cache had no more space for."""
    known = [(*sequence.request.prompt, *sequence.tokens) for sequence in sequences]
    prompts = {prompt: index for index, prompt in enumerate(sorted(set(known)))}
    batch = DecodingBatch(transformer, weights, list(prompts), len(sequences))
    rows = np.array([prompts[prompt] for prompt in known])  # row of the batch that each sequence is at
    _score_prompts(transformer, weights, sequences, [batch.prompt_hidden[row] for row in rows])
    logits, suspended = batch.prompt_logits, list[_Sequence]()
    while True:
        tokens = _step(logits, rows, sequences, decode)
        live = np.array([sequence.goes_on for sequence in sequences])
        if not live.any():
            return suspended
        live_sequences = [sequence for sequence, goes_on in zip(sequences, live, strict=True) if goes_on]
        rows, tokens = rows[live], tokens[live]
        keep = batch.rows_that_fit(len(live_sequences))
        sequences, late = live_sequences[:keep], live_sequences[keep:]
        suspended += late
        logits, rows = batch.extend(rows[:keep], tokens[:keep])


def _score_prompts(
    transformer: Transformer, weights: LowRankWeights, sequences: list[_Sequence], hidden: list[Tensor]
) -> None:
    """Compute what requests want to know about their prompts, at the first sequence of each."""
    for sequence, states in zip(sequences, hidden, strict=True):
        if sequence.index == 0 and not sequence.tokens:
            request = sequence.request
            sequence.scores = score_prompt(
                lambda part: transformer.logits(part, weights),
                states,
                list(request.prompt),
                wants_logprobs=request.prompt_logprobs,
                top=request.top_prompt_logprobs,
                targets=request.prompt_targets,
            )


def _step(
    logits: Tensor, rows: NDArray[np.int64], sequences: list[_Sequence], decode: Callable[[list[int]], str]
) -> NDArray[np.int64]:
    """Choose one token for each sequence from the logits of its row, and append it."""
    noise = np.array([sequence.noise[len(sequence.tokens)] for sequence in sequences])
    tokens, logprobs = choose(logits, rows, [sequence.rules for sequence in sequences], noise)
    best = top_logprobs(logits, max(sequence.request.top_logprobs for sequence in sequences))
    for sequence, row, token, logprob in zip(
        sequences, rows, tokens.tolist(), logprobs.tolist(), strict=True
    ):
        sequence.add(token, logprob, decode)
        if sequence.request.top_logprobs:
            sequence.top_logprobs.append(best[row][: sequence.request.top_logprobs])
    return tokens
