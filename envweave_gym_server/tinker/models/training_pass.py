"""Forward and backward passes over rows of tokens, packed and cut by a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.lora import FrozenAdapter, LoraAdapter
from envweave_gym_server.tinker.models.losses import Datum, LossConfig


@dataclass(frozen=True)
class PassResult:
    """The log-probabilities of each row's targets, with the shape of its targets, and the pass's metrics."""

    logprobs: list[Tensor]
    """0 where a loss does not use the position, in ``forward_backward``."""
    metrics: dict[str, float]
    """By ``name:reduction``, as the SDK reads them: ``loss:sum``, ``clip_fraction:mean``."""


def forward(
    transformer: Transformer,
    adapter: LoraAdapter | FrozenAdapter | None,
    datums: Sequence[Datum],
    loss: str,
    loss_config: LossConfig,
) -> PassResult:
    """Return log-probabilities at all positions, and the loss's metrics, without gradients."""
    raise NotImplementedError


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
    raise NotImplementedError
