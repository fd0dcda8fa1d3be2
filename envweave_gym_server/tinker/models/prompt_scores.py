"""Log-probabilities of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from envweave_gym_server.tinker.models.token_choice import TokenLogprobs, top_logprobs

_CHUNK_TOKENS = 256
"""Tokens whose logits are in memory together."""


class PromptScores(NamedTuple):
    """The log-probability of each token, and the most probable tokens instead of it; the first has none."""

    logprobs: list[float | None] | None
    top_logprobs: list[TokenLogprobs | None] | None


def score_prompt(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    prompt: Sequence[int],
    *,
    wants_logprobs: bool,
    top: int,
) -> PromptScores:
    """Return the scores that are wanted, from the final hidden states (tokens, width) of the prompt."""
    if not (wants_logprobs or top):
        return PromptScores(None, None)
    logprobs: list[float | None] = [None]
    best: list[TokenLogprobs | None] = [None]
    for states, tokens in zip(hidden[:-1].split(_CHUNK_TOKENS), _chunks(prompt[1:]), strict=True):
        logits = logits_of(states)
        chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        logprobs += (chosen - logits.logsumexp(-1)).tolist()
        best += top_logprobs(logits, top)
    return PromptScores(logprobs if wants_logprobs else None, best if top else None)


def _chunks(tokens: Sequence[int]) -> list[Sequence[int]]:
    starts = range(0, max(len(tokens), 1), _CHUNK_TOKENS)
    return [tokens[start : start + _CHUNK_TOKENS] for start in starts]
