"""Loss functions of the Tinker API over token log-probabilities; every loss is a sum over tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from envweave_gym_server.tinker.models.llama import ModelConfig

LOSSES: tuple[str, ...] = (
    "cross_entropy",
    "importance_sampling",
    "ppo",
    "cispo",
    "dro",
    "gspo",
    "stable_reinforce",
)
LossConfig = Mapping[str, float | str]


@dataclass(frozen=True)
class Datum:
    """One training row: tokens, and the loss function's inputs, one value for each token."""

    tokens: Sequence[int]
    inputs: Mapping[str, Tensor]
    """``target_tokens`` (T,) or (T, K) of integers; ``weights``, ``advantages``, ``logprobs``, … of floats."""


def check_datums(config: ModelConfig, datums: Sequence[Datum], loss: str, loss_config: LossConfig) -> None:
    """Raise ``ValueError`` for an unknown loss or option, missing inputs, wrong lengths, or tokens out of range."""
    raise NotImplementedError
