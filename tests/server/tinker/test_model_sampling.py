"""Sampling: what it draws, when it ends, and what it does not depend on."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from random_models import CONTEXT, VOCABULARY, random_adapter, reference_model, transformer_of

from envweave_gym_server.tinker.models import decoding, decoding_batch, prompt_scores
from envweave_gym_server.tinker.models.decoding import SampleRequest, SampleResult, check_request, sample
from envweave_gym_server.tinker.models.decoding_batch import DecodingBatch
from envweave_gym_server.tinker.models.llama import Transformer, precision_for
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.models.prompt_scores import PromptTargets, score_prompt
from envweave_gym_server.tinker.models.row_groups import assign_slots, rank_in_group
from envweave_gym_server.tinker.models.token_choice import ChoiceRules, choose
from envweave_gym_server.tinker.models.training_pass import forward

PROMPT = [5, 6, 7, 8]
REQUESTS = [
    SampleRequest(PROMPT, 3, 9, seed=1),
    SampleRequest([5, 6, 9], 2, 5, seed=2),
    SampleRequest([5, 6, 9], 2, 7, temperature=0.7, top_k=5, seed=2),
    SampleRequest([11], 4, 12, top_p=0.8, seed=3),
    SampleRequest([5, 6, 7, 8, 1, 2], 1, 3, temperature=0, seed=4),
]


def text_of(tokens: list[int]) -> str:
    return "".join(chr(ord("A") + token) for token in tokens)


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens for sequence in result.sequences]


def distribution(transformer: Transformer, tokens: list[int]) -> torch.Tensor:
    datum = Datum(tokens, {"target_tokens": torch.arange(VOCABULARY).repeat(len(tokens), 1)})
    return forward(transformer, None, [datum], "cross_entropy", {}).logprobs[0][-1].exp()


def test_the_same_seed_draws_the_same_tokens_and_another_one_others(transformer: Transformer):
    request = SampleRequest(PROMPT, 4, 20, seed=7)
    [first] = sample(transformer, None, [request], text_of)
    assert sample(transformer, None, [request], text_of) == [first]
    assert tokens_of(sample(transformer, None, [replace(request, seed=8)], text_of)[0]) != tokens_of(first)


def test_a_request_draws_the_same_tokens_alone_and_with_others(transformer: Transformer):
    adapter = random_adapter(transformer).snapshot()
    together = sample(transformer, adapter, REQUESTS, text_of)
    alone = [sample(transformer, adapter, [request], text_of)[0] for request in REQUESTS]
    assert [tokens_of(result) for result in together] == [tokens_of(result) for result in alone]
    reversed_order = sample(transformer, adapter, REQUESTS[::-1], text_of)[::-1]
    assert [tokens_of(result) for result in together] == [tokens_of(result) for result in reversed_order]


def test_sample_i_does_not_depend_on_count_and_max_tokens(transformer: Transformer):
    [few] = sample(transformer, None, [SampleRequest(PROMPT, 2, 4, seed=1)], text_of)
    [many] = sample(transformer, None, [SampleRequest(PROMPT, 5, 8, seed=1)], text_of)
    assert tokens_of(few) == [tokens[:4] for tokens in tokens_of(many)[:2]]


def test_samples_of_one_prompt_differ(transformer: Transformer):
    [result] = sample(transformer, None, [SampleRequest(PROMPT, 8, 8)], text_of)
    assert len({tuple(tokens) for tokens in tokens_of(result)}) == 8


def test_logprobs_are_those_of_a_training_pass(transformer: Transformer):
    adapter = random_adapter(transformer).snapshot()
    results = sample(transformer, adapter, REQUESTS, text_of)
    for request, result in zip(REQUESTS, results, strict=True):
        for sequence in result.sequences:
            row = [*request.prompt, *sequence.tokens]
            datum = Datum(row[:-1], {"target_tokens": torch.tensor(row[1:])})
            [logprobs] = forward(transformer, adapter, [datum], "cross_entropy", {}).logprobs
            assert sequence.logprobs == pytest.approx(logprobs[len(request.prompt) - 1 :].tolist(), abs=1e-4)


def test_greedy_tokens_are_those_of_transformers():
    model = reference_model("qwen3")
    length = CONTEXT - len(PROMPT)
    [result] = sample(transformer_of(model), None, [SampleRequest(PROMPT, 2, length, temperature=0)], text_of)
    row = torch.tensor([PROMPT])
    for _ in range(length):
        row = torch.cat([row, model(row).logits[:, -1:].argmax(-1)], 1)
    assert tokens_of(result) == [row[0, len(PROMPT) :].tolist()] * 2


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, VOCABULARY), ({"temperature": 0.5}, VOCABULARY), ({"top_k": 3}, 3), ({"top_k": 1}, 1)],
)
def test_frequencies_follow_the_distribution(transformer: Transformer, settings: dict[str, float], kept: int):
    expected = distribution(transformer, PROMPT) ** (1 / settings.get("temperature", 1))
    expected[expected.argsort()[: VOCABULARY - kept]] = 0
    expected /= expected.sum()
    request = SampleRequest(PROMPT, 20_000, 1, **settings)  # pyright: ignore[reportArgumentType]
    counts = Counter(tokens[0] for tokens in tokens_of(sample(transformer, None, [request], text_of)[0]))
    for token, probability in enumerate(expected.tolist()):
        spread = math.sqrt(probability * (1 - probability) / 20_000)
        assert counts[token] / 20_000 == pytest.approx(probability, abs=5 * spread + 1e-9)


def test_top_p_keeps_the_smallest_set_that_reaches_it(transformer: Transformer):
    probabilities, order = distribution(transformer, PROMPT).sort(descending=True)
    size = int((probabilities.cumsum(0) < 0.6).sum()) + 1
    [result] = sample(transformer, None, [SampleRequest(PROMPT, 3000, 1, top_p=0.6)], text_of)
    assert {tokens[0] for tokens in tokens_of(result)} == set(order[:size].tolist())


def test_a_token_of_probability_zero_is_never_chosen():
    logits = torch.tensor([[0.0, -math.inf, 0.0, -math.inf]])
    noise = np.array([0.0, 0.5, np.nextafter(1, 0)])
    tokens, _ = choose(logits, np.zeros(3, np.int64), [ChoiceRules(1.0, -1, 1.0)] * 3, noise)
    assert tokens.tolist() == [0, 2, 2]


def test_a_stop_token_ends_a_sequence_and_is_part_of_it(transformer: Transformer):
    [free] = sample(transformer, None, [SampleRequest(PROMPT, 1, 20, seed=1)], text_of)
    tokens = free.sequences[0].tokens
    stop = tokens[5]
    request = SampleRequest(PROMPT, 1, 20, stop_ids=frozenset({stop}), seed=1)
    [stopped] = sample(transformer, None, [request], text_of)
    assert stopped.sequences[0].tokens == tokens[: tokens.index(stop) + 1]
    assert stopped.sequences[0].stop_reason == "stop"
    assert free.sequences[0].stop_reason == "length"


def test_a_stop_string_ends_a_sequence_with_the_token_that_completes_it(transformer: Transformer):
    [free] = sample(transformer, None, [SampleRequest(PROMPT, 1, 30, seed=1)], text_of)
    tokens = free.sequences[0].tokens
    string = text_of(tokens[20:23])
    request = SampleRequest(PROMPT, 1, 30, stop_strings=("none", string), seed=1)
    [stopped] = sample(transformer, None, [request], text_of)
    assert stopped.sequences[0].tokens == tokens[:23]
    assert stopped.sequences[0].stop_reason == "stop"


def test_a_sequence_ends_at_the_end_of_the_context(transformer: Transformer):
    prompt = [1] * (CONTEXT - 3)
    [result] = sample(transformer, None, [SampleRequest(prompt, 2, 100)], text_of)
    assert [(len(row.tokens), row.stop_reason) for row in result.sequences] == [(3, "length")] * 2


def test_targets_are_those_of_their_rows_in_every_chunk_of_a_prompt(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_scores, "_CHUNK_TOKENS", 4)
    logits = torch.randn(11, 7, generator=torch.Generator().manual_seed(0))
    # Several in a row, in the last row of a chunk and the first of the next one, and none in the last chunk.
    rows, tokens = np.array([0, 0, 3, 3, 4, 7]), np.array([6, 1, 2, 2, 5, 0])
    for chosen in (slice(None), slice(2, 3), slice(0, 0)):
        targets = PromptTargets(rows[chosen], tokens[chosen])
        found = score_prompt(
            lambda states: states, logits, [1] * 11, wants_logprobs=True, top=0, targets=targets
        )
        expected = logits.log_softmax(-1)
        assert found.target_logprobs == pytest.approx(
            expected[rows[chosen], tokens[chosen]].numpy(), abs=1e-6
        )
        assert found.logprobs == [None, *map(pytest.approx, expected[:-1, 1].tolist())]


def test_prompt_logprobs_begin_with_the_second_token(transformer: Transformer):
    datum = Datum(PROMPT[:-1], {"target_tokens": torch.tensor(PROMPT[1:])})
    [expected] = forward(transformer, None, [datum], "cross_entropy", {}).logprobs
    request = SampleRequest(PROMPT, 2, 1, prompt_logprobs=True)
    plain, scored = sample(transformer, None, [SampleRequest(PROMPT, 1, 1), request], text_of)
    assert plain.prompt_logprobs is None
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs[0] is None
    assert scored.prompt_logprobs[1:] == pytest.approx(expected.tolist(), abs=1e-5)


def test_the_most_probable_tokens_are_returned_best_first(transformer: Transformer):
    request = SampleRequest(PROMPT, 1, 2, top_logprobs=3, top_prompt_logprobs=2)
    [result] = sample(transformer, None, [request], text_of)
    best = distribution(transformer, PROMPT).log().topk(3)
    [first, _] = result.sequences[0].top_logprobs
    assert [token for token, _ in first] == best.indices.tolist()
    assert [value for _, value in first] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert result.top_prompt_logprobs is not None
    assert result.top_prompt_logprobs[0] is None
    second = distribution(transformer, PROMPT[:1]).topk(2).indices.tolist()
    assert [token for token, _ in result.top_prompt_logprobs[1] or []] == second


def test_a_prompt_of_one_token_has_no_logprobs(transformer: Transformer):
    [result] = sample(transformer, None, [SampleRequest([3], 1, 1, prompt_logprobs=True)], text_of)
    assert result.prompt_logprobs == [None]


class _Counting(Transformer):
    """Counts the rows of each layer's passes."""

    def __init__(self, transformer: Transformer) -> None:
        self.__dict__.update(transformer.__dict__)
        self.rows: list[int] = []

    def layer(self, layer: int, hidden: torch.Tensor, **rest: object) -> torch.Tensor:
        if layer == 0:
            self.rows.append(len(hidden))
        return super().layer(layer, hidden, **rest)  # pyright: ignore[reportArgumentType]


def test_equal_prompts_and_equal_continuations_are_computed_once(transformer: Transformer):
    counting = _Counting(transformer)
    requests = [SampleRequest(PROMPT, 50, 4, temperature=0, seed=seed) for seed in range(3)]
    sample(counting, None, [*requests, SampleRequest([*PROMPT[:2], 1], 9, 4, temperature=0)], text_of)
    assert counting.rows == [5, 2, 2, 2]


def test_a_full_cache_suspends_sequences_without_changing_their_tokens(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    expected = sample(transformer, None, REQUESTS, text_of)
    monkeypatch.setattr(decoding_batch, "CACHE_BYTES", 3 * 2 * 16 * 2 * 4 * 25)  # 25 tokens
    monkeypatch.setattr(decoding, "_ASSUMED_TOKENS", 2)
    counting = _Counting(transformer)
    limited = sample(counting, None, REQUESTS, text_of)
    assert [tokens_of(result) for result in limited] == [tokens_of(result) for result in expected]
    assert max(counting.rows) <= 25


def test_the_space_for_continuations_shrinks_with_the_sequences_that_fit(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    tokens, sizes = 800, list[int]()

    def space(batch: DecodingBatch, capacity: int) -> Any:
        made = allocate(batch, capacity)
        sizes.append(made.keys.shape[2] * made.keys.shape[3])
        return made

    allocate = DecodingBatch._space
    monkeypatch.setattr(DecodingBatch, "_space", space)
    monkeypatch.setattr(decoding_batch, "CACHE_BYTES", 3 * 2 * 16 * 2 * 4 * tokens)
    monkeypatch.setattr(decoding, "_ASSUMED_TOKENS", 16)
    requests = [SampleRequest(PROMPT, 60, CONTEXT - len(PROMPT), stop_ids=frozenset())]
    limited = sample(transformer, None, requests, text_of)
    assert max(sizes) <= 2.5 * tokens  # 64 tokens for each of 50 sequences would be 4 times
    monkeypatch.undo()
    assert [tokens_of(one) for one in sample(transformer, None, requests, text_of)] == [
        tokens_of(one) for one in limited
    ]


def test_the_keys_of_prompts_of_mixed_lengths_stay_within_the_limit(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    requests = [SampleRequest([token, token, 1], 1, 4, seed=token) for token in range(30)]
    requests.insert(15, SampleRequest([30] * (CONTEXT - 6), 2, 6, seed=1))
    expected = sample(transformer, None, requests, text_of)
    sizes = list[int]()

    def prefill(batch: DecodingBatch, prompts: Any) -> None:
        compute(batch, prompts)
        sizes.append(sum(part.nbytes for layer in (*batch._common, *batch._rest) for part in layer))

    compute = DecodingBatch._prefill
    limit = 3 * 2 * 16 * 2 * 4 * 150  # 150 tokens
    monkeypatch.setattr(DecodingBatch, "_prefill", prefill)
    monkeypatch.setattr(decoding_batch, "CACHE_BYTES", limit)
    limited = sample(transformer, None, requests, text_of)
    assert max(sizes) <= limit  # all are padded to the longest
    assert [tokens_of(result) for result in limited] == [tokens_of(result) for result in expected]


def test_sequences_whose_prompts_leave_no_space_go_on_one_by_one(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    requests = [SampleRequest([token] * 20, 2, 5, seed=token) for token in range(3)]
    expected = sample(transformer, None, requests, text_of)
    monkeypatch.setattr(decoding_batch, "CACHE_BYTES", 3 * 2 * 16 * 2 * 4 * 10)  # 10 tokens
    limited = sample(transformer, None, requests, text_of)
    assert [tokens_of(result) for result in limited] == [tokens_of(result) for result in expected]


def test_no_batch_has_more_sequences_than_the_limit(
    transformer: Transformer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decoding, "MAX_BATCH_SEQUENCES", 5)
    counting = _Counting(transformer)
    [result] = sample(counting, None, [SampleRequest(PROMPT, 12, 6)], text_of)
    assert len(result.sequences) == 12
    assert max(counting.rows) == 5


def test_long_prompts_are_computed_in_pieces(transformer: Transformer, monkeypatch: pytest.MonkeyPatch):
    requests = [SampleRequest([first] * 20, 2, 3, prompt_logprobs=True) for first in range(6)]
    expected = sample(transformer, None, requests, text_of)
    monkeypatch.setattr(decoding_batch, "_PREFILL_TOKENS", 45)
    counting = _Counting(transformer)
    assert list(map(tokens_of, sample(counting, None, requests, text_of))) == list(map(tokens_of, expected))
    assert counting.rows[:3] == [40, 40, 40]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": []}, "0 tokens"),
        ({"prompt": [1] * CONTEXT}, f"takes 1 to {CONTEXT - 1}"),
        ({"prompt": [1, VOCABULARY]}, f"token {VOCABULARY}"),
        ({"prompt": [-1]}, "token -1"),
        ({"prompt": [1, 2**70]}, f"token {2**70}"),
        ({"top_logprobs": -1}, "top_logprobs must be 0 to"),
        ({"top_logprobs": 10**12}, f"top_logprobs must be 0 to {VOCABULARY}, not {10**12}"),
        ({"top_prompt_logprobs": VOCABULARY + 1}, "top_prompt_logprobs must be 0 to"),
        ({"count": 0}, "count must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(
    transformer: Transformer, change: dict[str, object], words: str
):
    with pytest.raises(ValueError, match=words):
        check_request(transformer.config, replace(SampleRequest(PROMPT), **change))  # pyright: ignore


def test_slots_keep_first_children_and_fill_holes():
    slots, moved = assign_slots(np.array([0, 0, 2, 5, 5]))
    assert slots.tolist() == [0, 1, 2, 3, 4]
    assert moved.tolist() == [False, True, False, True, True]
    assert rank_in_group(np.array([1, 0, 1, 1, 0])).tolist() == [0, 0, 1, 2, 1]


def test_a_small_model_is_computed_in_full_precision_whatever_the_process_is_set_to(transformer: Transformer):
    datum = Datum(PROMPT, {"target_tokens": torch.tensor(PROMPT)})
    exact = (
        forward(transformer, None, [datum], "cross_entropy", {}).logprobs,
        sample(transformer, None, REQUESTS, text_of),
    )
    torch.set_float32_matmul_precision("medium")
    [logprobs] = forward(transformer, None, [datum], "cross_entropy", {}).logprobs
    assert torch.equal(logprobs, exact[0][0])
    assert sample(transformer, None, REQUESTS, text_of) == exact[1]
    assert torch.get_float32_matmul_precision() == "medium"


def test_the_precision_is_restored_after_an_error(transformer: Transformer):
    def fail() -> None:
        with precision_for(transformer.config):
            assert torch.get_float32_matmul_precision() == "highest"
            raise ZeroDivisionError

    torch.set_float32_matmul_precision("medium")
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_float32_matmul_precision() == "medium"
    with precision_for(replace(transformer.config, width=576)):
        assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_choose_nothing(temperature: float, value: float):
    logits = torch.tensor([[0.0, 1.0], [value, 1.0]])
    with pytest.raises(ValueError, match="logits are not finite"):
        choose(logits, np.array([0, 1]), [ChoiceRules(temperature, -1, 1.0)] * 2, np.array([0.5, 0.5]))


def test_a_temperature_that_would_overflow_logits_is_refused(transformer: Transformer):
    with pytest.raises(ValueError, match=r"temperature must be 0 \(greedy\) or from 1e-06 on"):
        check_request(transformer.config, SampleRequest(PROMPT, temperature=1e-38))
    [lowest] = sample(transformer, None, [SampleRequest(PROMPT, temperature=1e-6)], text_of)
    [greedy] = sample(transformer, None, [SampleRequest(PROMPT, temperature=0)], text_of)
    assert tokens_of(lowest) == tokens_of(greedy)
