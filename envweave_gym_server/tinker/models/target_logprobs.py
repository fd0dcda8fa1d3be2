"""Log-probabilities of chosen tokens, with a gradient that needs the logits once in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envweave_gym_server.tinker.models.llama import LowRankWeights, Transformer

_CHUNK_POSITIONS = 512
"""Positions whose logits are in memory together."""


def target_logprobs(
    transformer: Transformer, adapter: LowRankWeights, hidden: Tensor, nodes: Tensor, targets: Tensor
) -> Tensor:
    """Return the log-probability (M,) of each target after its node.

    ``hidden`` (N, width) are the final states of all nodes; ``nodes`` and ``targets`` are (M,). The logits of a
    node are computed once, and for long rows again in the backward pass.
    """
    used, row_of = nodes.unique(return_inverse=True)
    states = hidden[used]
    if len(used) <= _CHUNK_POSITIONS:
        return _of_rows(transformer, adapter, states, row_of, targets)
    logprobs = torch.zeros(len(nodes))
    for start in range(0, len(used), _CHUNK_POSITIONS):
        members = ((row_of >= start) & (row_of < start + _CHUNK_POSITIONS)).nonzero()[:, 0]
        chunk = states[start : start + _CHUNK_POSITIONS]
        step = partial(_of_rows, transformer, adapter)
        values = checkpoint(step, chunk, row_of[members] - start, targets[members], use_reentrant=False)
        logprobs = logprobs.index_copy(0, members, values)
    return logprobs


def _of_rows(
    transformer: Transformer, adapter: LowRankWeights, states: Tensor, rows: Tensor, targets: Tensor
) -> Tensor:
    return _Chosen.apply(transformer.logits(states, adapter), rows, targets)


class _Chosen(torch.autograd.Function):
    """Log-softmax of logits (rows, vocabulary) at chosen entries (M,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probabilities (M,)."""
        sums = logits.logsumexp(-1)
        ctx.save_for_backward(logits, sums, rows, targets)
        return logits[rows, targets] - sums[rows]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits. It adds duplicates in a fixed order, whatever the threads."""
        logits, sums, rows, targets = ctx.saved_tensors
        by_row = torch.zeros(len(logits)).index_add_(0, rows, grads[0])
        entries, entry_of = (rows * logits.shape[1] + targets).unique(return_inverse=True)
        by_entry = torch.zeros(len(entries)).index_add_(0, entry_of, grads[0])
        gradient = (logits - sums[:, None]).exp_().mul_(-by_row[:, None])
        gradient.view(-1)[entries] += by_entry
        return gradient, None, None
