"""Choice of the next token from logits: temperature, top-k, top-p, and the noise of each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envweave_gym_server.tinker.models.row_groups import Indices, rank_in_group

TokenLogprobs = list[tuple[int, float]]
"""The most probable tokens of one position with their log-probabilities, the best first."""


class ChoiceRules(NamedTuple):
    """How a sequence's next token is chosen."""

    temperature: float
    top_k: int
    top_p: float


def choose(
    logits: Tensor, rows: Indices, rules: Sequence[ChoiceRules], noise: NDArray[np.float64]
) -> tuple[Indices, NDArray[np.float32]]:
    """Return a token of each sequence and its log-probability.

    ``logits`` are (rows, vocabulary), and ``rows`` names the row of each sequence. ``noise`` in [0, 1) has one
    value for each sequence; the token is where the cumulative distribution exceeds it. Logits that are not finite
    raise ``ValueError``.
    """
    totals = logits.logsumexp(-1)
    if not bool(totals.isfinite().all()):
        raise ValueError(
            "the model's logits are not finite, as after training with a too large learning rate; sample from earlier "
            "weights"
        )
    tokens = np.empty(len(rows), np.int64)
    kinds = {rule: kind for kind, rule in enumerate(dict.fromkeys(rules))}
    kind_of = np.array([kinds[rule] for rule in rules])
    for rule, kind in kinds.items():
        members = kind_of == kind
        used, row_of = np.unique(rows[members], return_inverse=True)
        own = logits if len(used) == len(logits) else logits[torch.from_numpy(used)]
        tokens[members] = _choose_by(rule, own, row_of.reshape(-1), noise[members])
    chosen = logits[torch.from_numpy(rows), torch.from_numpy(tokens)]
    return tokens, (chosen - totals[torch.from_numpy(rows)]).numpy()


def _choose_by(rule: ChoiceRules, logits: Tensor, rows: Indices, noise: NDArray[np.float64]) -> Indices:
    if rule.temperature == 0:
        return logits.argmax(-1).numpy()[rows]
    scaled = logits if rule.temperature == 1 else logits / rule.temperature
    cumulative = _filtered(scaled, rule).softmax(-1).cumsum(-1)  # (rows, vocabulary)
    total = cumulative[:, -1:]
    ranks = rank_in_group(rows)
    values = torch.zeros(len(logits), int(ranks.max()) + 1)  # the noise of each row's sequences
    values[rows, ranks] = torch.from_numpy(noise).float()
    below_total = torch.nextafter(total, torch.zeros(()))  # a token of probability 0 is never chosen
    found = torch.searchsorted(cumulative, torch.minimum(values * total, below_total), right=True)
    return found.numpy()[rows, ranks]


def _filtered(logits: Tensor, rule: ChoiceRules) -> Tensor:
    """Set the logits outside of the ``top_k`` best and of the smallest set of mass ``top_p`` to minus infinity."""
    if 0 < rule.top_k < logits.shape[-1]:
        least = logits.topk(rule.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if rule.top_p < 1:
        best, order = logits.sort(dim=-1, descending=True, stable=True)
        mass = best.softmax(-1)
        outside = mass.cumsum(-1) - mass > rule.top_p
        logits = torch.full_like(logits, -math.inf).scatter(-1, order, best.masked_fill(outside, -math.inf))
    return logits


def top_logprobs(logits: Tensor, count: int) -> list[TokenLogprobs]:
    """Return the ``count`` most probable tokens of each row."""
    if not count:
        return []
    best = (logits - logits.logsumexp(-1, keepdim=True)).topk(min(count, logits.shape[-1]), -1)
    return [
        list(zip(tokens, values, strict=True))
        for tokens, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
