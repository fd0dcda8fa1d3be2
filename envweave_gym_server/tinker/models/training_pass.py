"""Forward and backward passes over rows of tokens, packed and cut by a token budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envweave_gym_server.tinker.models.llama import (
    LowRankWeights,
    ModelConfig,
    Transformer,
    precision_for,
)
from envweave_gym_server.tinker.models.lora import FrozenAdapter, LoraAdapter
from envweave_gym_server.tinker.models.losses import (
    Datum,
    LossConfig,
    LossTerms,
    check_datums,
    loss_value,
    mask_inputs,
)
from envweave_gym_server.tinker.models.prefix_packing import cut_by_nodes, pack
from envweave_gym_server.tinker.models.target_logprobs import target_logprobs

PASS_BYTES = 2**30
"""Most memory for what a backward pass needs of a forward pass, as long as no row needs more."""
_MAX_PASS_TOKENS = 1024
"""Measured on CPU: fewer take a small model longer, and more gain nothing."""


@dataclass(frozen=True)
class PassResult:
    """The log-probabilities of each row's targets, with the shape of its targets, and the pass's metrics."""

    logprobs: list[Tensor]
    """0 where a loss does not use the position, in ``forward_backward``."""
    metrics: dict[str, float]
    """By ``name:reduction``, as the SDK reads them: ``loss:sum``, ``clip_fraction:mean``."""


@dataclass(frozen=True)
class _Row:
    """A datum ready for the pass: its tokens as far as they are needed, and its flat inputs."""

    index: int
    tokens: list[int]
    positions: NDArray[np.int64]
    """Position of each value that is computed; several of them are equal if there are K targets a position."""
    computed: NDArray[np.int64]
    """Indices in the flat targets of the values that are computed."""
    targets: NDArray[np.int64]
    """Flat targets, whether they are computed or not."""
    inputs: dict[str, NDArray[np.float32]]
    """Flat inputs of the loss."""
    used: NDArray[np.bool_]
    """Flat: whether the loss uses the value."""

    def key(self) -> tuple[list[int], bytes, list[bytes]]:
        """Return the key of the canonical order."""
        return (
            self.tokens,
            self.targets.tobytes(),
            [values.tobytes() for _, values in sorted(self.inputs.items())],
        )


class _Totals:
    """The sums of a pass over its pieces."""

    def __init__(self, datums: Sequence[Datum]) -> None:
        self.logprobs = [torch.zeros(datum.inputs["target_tokens"].shape) for datum in datums]
        self.loss, self.tokens, self.clipped, self.has_clips = 0.0, 0, 0, False

    def metrics(self) -> dict[str, float]:
        clips = {"clip_fraction:mean": self.clipped / max(self.tokens, 1)} if self.has_clips else {}
        return {"loss:sum": self.loss, "tokens:sum": float(self.tokens), **clips}


def forward(
    transformer: Transformer,
    adapter: LoraAdapter | FrozenAdapter | None,
    datums: Sequence[Datum],
    loss: str,
    loss_config: LossConfig,
) -> PassResult:
    """Return log-probabilities at all positions, and the loss's metrics, without gradients."""
    check_datums(transformer.config, datums, loss, loss_config)
    frozen = adapter.snapshot() if isinstance(adapter, LoraAdapter) else adapter
    weights = frozen.weights if frozen is not None else {}
    rows = [_row(index, datum, loss, everywhere=True) for index, datum in enumerate(datums)]
    totals = _Totals(datums)
    with torch.no_grad(), precision_for(transformer.config):
        for piece in _pieces(transformer.config, rows):
            _pass(transformer, weights, piece, loss, loss_config, totals)
    return PassResult(totals.logprobs, totals.metrics())


def forward_backward(
    transformer: Transformer,
    adapter: LoraAdapter,
    datums: Sequence[Datum],
    loss: str,
    loss_config: LossConfig,
) -> PassResult:
    """Add the gradient of the loss to the adapter's parameters.

    Rows are sorted first, so that their order does not change a bit of the result.
    """
    check_datums(transformer.config, datums, loss, loss_config)
    rows = [_row(index, datum, loss, everywhere=False) for index, datum in enumerate(datums)]
    totals = _Totals(datums)
    with precision_for(transformer.config):
        for piece in _pieces(transformer.config, [row for row in rows if len(row.positions)]):
            total = _pass(transformer, adapter.weights(), piece, loss, loss_config, totals)
            if total.requires_grad:
                total.backward()
    return PassResult(totals.logprobs, totals.metrics())


def pass_tokens(config: ModelConfig) -> int:
    """Return how many tokens a pass computes together."""
    floats = config.layers * (12 * config.width + 5 * config.feed_forward_width)
    return max(1, min(_MAX_PASS_TOKENS, PASS_BYTES // (4 * floats)))


def _row(index: int, datum: Datum, loss: str, *, everywhere: bool) -> _Row:
    targets = datum.inputs["target_tokens"].long()
    inputs = {
        name: values.float().numpy().reshape(-1)
        for name, values in datum.inputs.items()
        if name != "target_tokens"
    }
    if loss == "cross_entropy":
        inputs.setdefault("weights", np.ones(targets.numel(), np.float32))
    used = np.zeros(targets.numel(), np.bool_)
    for name in mask_inputs(loss):
        if name in inputs:
            used |= inputs[name] != 0
    computed = np.arange(targets.numel()) if everywhere else np.flatnonzero(used)
    positions = computed // (targets.numel() // len(targets))
    length = int(positions[-1]) + 1 if len(positions) else 0
    flat = targets.numpy().reshape(-1)
    return _Row(index, list(datum.tokens[:length]), positions, computed, flat, inputs, used)


def _pieces(config: ModelConfig, rows: list[_Row]) -> list[list[_Row]]:
    """Sort the rows and cut them into passes."""
    ordered = sorted(rows, key=_Row.key)
    pieces = cut_by_nodes([row.tokens for row in ordered], pass_tokens(config))
    return [[ordered[index] for index in piece] for piece in pieces]


def _pass(
    transformer: Transformer,
    weights: LowRankWeights,
    rows: list[_Row],
    loss: str,
    loss_config: LossConfig,
    totals: _Totals,
) -> Tensor:
    """Compute one piece, add it to the totals, and return its loss."""
    packed = pack([row.tokens for row in rows])
    recompute = torch.is_grad_enabled() and len(packed) > 2 * pass_tokens(transformer.config)
    hidden = transformer.forward(packed, weights, recompute=recompute)
    nodes = _joined(path[row.positions] for path, row in zip(packed.paths, rows, strict=True))
    targets = _joined(row.targets[row.computed] for row in rows)
    logprobs = target_logprobs(transformer, weights, hidden, nodes, targets)
    value = loss_value(loss, _terms(rows, logprobs, loss_config))
    totals.loss += float(value.total.detach())
    totals.tokens += sum(int(row.used.sum()) for row in rows)
    totals.has_clips |= value.clipped is not None
    totals.clipped += value.clipped or 0
    for row, own in zip(rows, logprobs.detach().split([len(row.computed) for row in rows]), strict=True):
        totals.logprobs[row.index].view(-1)[torch.from_numpy(row.computed)] = own
    return value.total


def _terms(rows: list[_Row], logprobs: Tensor, loss_config: LossConfig) -> LossTerms:
    """Return what the loss uses of the computed values."""
    used = _joined(row.used[row.computed] for row in rows)
    names = rows[0].inputs
    inputs = {name: _joined(row.inputs[name][row.computed] for row in rows)[used] for name in names}
    row_of = _joined(np.full(len(row.computed), number) for number, row in enumerate(rows))
    return LossTerms(logprobs[used], inputs, row_of[used], loss_config)


def _joined(parts: Iterable[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)))
