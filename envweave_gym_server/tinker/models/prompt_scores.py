"""Log-probabilities of the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envweave_gym_server.tinker.models.token_choice import TokenLogprobs, top_logprobs

_CHUNK_TOKENS = 256
"""Tokens whose logits are in memory together."""


class PromptTargets(NamedTuple):
    """Tokens to score at positions of a prompt, one or more at each."""

    rows: NDArray[np.int64]
    """(M,) positions before those of the tokens, in ascending order."""
    tokens: NDArray[np.int64]
    """(M,)"""


class PromptScores(NamedTuple):
    """The log-probability of each token, and the most probable tokens instead of it; the first has none."""

    logprobs: list[float | None] | None = None
    top_logprobs: list[TokenLogprobs | None] | None = None
    target_logprobs: NDArray[np.float32] | None = None
    """(M,) of the targets."""


def score_prompt(
    logits_of: Callable[[Tensor], Tensor],
    hidden: Tensor,
    prompt: Sequence[int],
    *,
    wants_logprobs: bool,
    top: int,
    targets: PromptTargets | None = None,
) -> PromptScores:
    """Return the scores that are wanted, from the final hidden states (tokens, width) of the prompt."""
    if not (wants_logprobs or top or targets):
        return PromptScores()
    logprobs: list[float | None] = [None]
    best: list[TokenLogprobs | None] = [None]
    of_targets: list[NDArray[np.float32]] = []
    for states, tokens in zip(hidden[:-1].split(_CHUNK_TOKENS), _chunks(prompt[1:]), strict=True):
        logits = logits_of(states)
        chosen = logits.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        totals = logits.logsumexp(-1)
        if targets:
            rows, chosen_targets = _between(targets, len(logprobs) - 1, len(states))
            of_targets.append((logits[rows, chosen_targets] - totals[rows]).numpy())
        logprobs += (chosen - totals).tolist()
        best += top_logprobs(logits, top)
    return PromptScores(
        logprobs if wants_logprobs else None,
        best if top else None,
        np.concatenate(of_targets) if targets else None,
    )


def _between(targets: PromptTargets, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Return rows, counted from ``start``, and tokens of the targets in ``length`` rows from there on."""
    first, end = np.searchsorted(targets.rows, (start, start + length))
    return torch.from_numpy(targets.rows[first:end] - start), torch.from_numpy(targets.tokens[first:end])


def _chunks(tokens: Sequence[int]) -> list[Sequence[int]]:
    starts = range(0, max(len(tokens), 1), _CHUNK_TOKENS)
    return [tokens[start : start + _CHUNK_TOKENS] for start in starts]
