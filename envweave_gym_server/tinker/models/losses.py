"""Loss functions of the Tinker API over token log-probabilities; every loss is a sum over tokens.

``ratio`` is the probability of a target under the model over that of the sampler. ``stable_reinforce`` is our
reading, REINFORCE weighted by a truncated ratio: the hosted service does not publish its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from envweave_gym_server.tinker.models.llama import ModelConfig

LossConfig = Mapping[str, float | str]
_HIGHEST_LOG_RATIO = 20.0
"""Ratios are cut at ``exp`` of it, before they overflow."""
_CLIPS = ("clip_low_threshold", "clip_high_threshold")


@dataclass(frozen=True)
class Datum:
    """One training row: tokens, and the loss function's inputs, one value for each token."""

    tokens: Sequence[int]
    inputs: Mapping[str, Tensor]
    """``target_tokens`` (T,) or (T, K) of integers; ``weights``, ``advantages``, ``logprobs``, … of floats."""


@dataclass(frozen=True)
class LossTerms:
    """The tokens that a loss uses, of all rows one after another: (M,) each."""

    logprobs: Tensor
    inputs: Mapping[str, Tensor]
    rows: Tensor
    """Row of each token."""
    config: LossConfig

    def ratio(self) -> Tensor:
        """Return the ratio at each token."""
        return (self.logprobs - self.inputs["logprobs"]).clamp(max=_HIGHEST_LOG_RATIO).exp()

    def option(self, name: str, default: float) -> Tensor:
        """Return a threshold: that of each token if the rows give it, else that of the call."""
        return self.inputs.get(name, torch.tensor(float(self.config.get(name, default))))

    def clips(self, loss: str) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest ratio that is not clipped."""
        low, high = _LOSSES[loss].clips
        return self.option(_CLIPS[0], low), self.option(_CLIPS[1], high)


class LossValue(NamedTuple):
    """A loss, and how many of its tokens are clipped."""

    total: Tensor
    clipped: int | None = None


def _cross_entropy(terms: LossTerms) -> LossValue:
    return LossValue(-(terms.logprobs * terms.inputs["weights"]).sum())


def _importance_sampling(terms: LossTerms) -> LossValue:
    return LossValue(-(terms.ratio() * terms.inputs["advantages"]).sum())


def _ppo(terms: LossTerms) -> LossValue:
    return _clipped(terms, terms.ratio(), *terms.clips("ppo"))


def _cispo(terms: LossTerms) -> LossValue:
    return _weighted_by_ratio(terms, *terms.clips("cispo"))


def _stable_reinforce(terms: LossTerms) -> LossValue:
    return _weighted_by_ratio(terms, *terms.clips("stable_reinforce"))


def _dro(terms: LossTerms) -> LossValue:
    distance = terms.logprobs - terms.inputs["logprobs"]
    gain = terms.logprobs * terms.inputs["advantages"]
    return LossValue((0.5 * terms.option("beta", 0.05) * distance**2 - gain).sum())


def _gspo(terms: LossTerms) -> LossValue:
    """PPO with one ratio for each row: the geometric mean over the tokens of ``sequence_ratio_mask``."""
    mask = terms.inputs.get("sequence_ratio_mask", torch.ones_like(terms.logprobs))
    rows = int(terms.rows.max()) + 1 if len(terms.rows) else 0
    distance = (terms.logprobs - terms.inputs["logprobs"]) * mask
    counts = torch.zeros(rows).index_add(0, terms.rows, mask).clamp(min=1)
    means = torch.zeros(rows).index_add(0, terms.rows, distance) / counts
    return _clipped(terms, means.clamp(max=_HIGHEST_LOG_RATIO).exp()[terms.rows], *terms.clips("gspo"))


def _clipped(terms: LossTerms, ratio: Tensor, low: Tensor, high: Tensor) -> LossValue:
    advantages = terms.inputs["advantages"]
    gain = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    return LossValue(-gain.sum(), _count_clipped(terms, ratio, low, high))


def _weighted_by_ratio(terms: LossTerms, low: Tensor, high: Tensor) -> LossValue:
    ratio = terms.ratio().detach()
    gain = ratio.clamp(low, high) * terms.inputs["advantages"] * terms.logprobs
    return LossValue(-gain.sum(), _count_clipped(terms, ratio, low, high))


def _count_clipped(terms: LossTerms, ratio: Tensor, low: Tensor, high: Tensor) -> int:
    return int((((ratio < low) | (ratio > high)) & (terms.inputs["advantages"] != 0)).sum())


class _Loss(NamedTuple):
    function: Callable[[LossTerms], LossValue]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    clips: tuple[float, float] = (0.0, math.inf)
    """The defaults of the thresholds."""


_SAMPLED = ("target_tokens", "logprobs", "advantages")
_LOSSES: dict[str, _Loss] = {
    "cross_entropy": _Loss(_cross_entropy, ("target_tokens",), ("weights",)),
    "importance_sampling": _Loss(_importance_sampling, _SAMPLED),
    "ppo": _Loss(_ppo, _SAMPLED, _CLIPS, _CLIPS, (0.8, 1.2)),
    "cispo": _Loss(_cispo, _SAMPLED, _CLIPS, _CLIPS, (0.8, 1.2)),
    "dro": _Loss(_dro, _SAMPLED, (), ("beta",)),
    "gspo": _Loss(_gspo, _SAMPLED, (*_CLIPS, "sequence_ratio_mask"), _CLIPS, (1 - 3e-4, 1 + 4e-4)),
    "stable_reinforce": _Loss(_stable_reinforce, _SAMPLED, _CLIPS, _CLIPS, (0.0, 2.0)),
}
LOSSES: tuple[str, ...] = tuple(_LOSSES)


def loss_value(loss: str, terms: LossTerms) -> LossValue:
    """Return the loss over all terms."""
    return _LOSSES[loss].function(terms)


def mask_inputs(loss: str) -> tuple[str, ...]:
    """Return the inputs whose values other than 0 select the tokens that the loss uses."""
    return ("weights",) if loss == "cross_entropy" else ("advantages", "logprobs", "sequence_ratio_mask")


def check_datums(config: ModelConfig, datums: Sequence[Datum], loss: str, loss_config: LossConfig) -> None:
    """Raise ``ValueError`` for an unknown loss or option, missing inputs, wrong lengths, or tokens out of range."""
    if loss not in _LOSSES:
        raise ValueError(f"the loss {loss!r} is not supported here; there are {', '.join(LOSSES)}")
    for name, value in loss_config.items():
        if name not in _LOSSES[loss].options:
            allowed = ", ".join(_LOSSES[loss].options) or "none"
            raise ValueError(f"the loss {loss!r} has no option {name!r}; its options: {allowed}")
        if not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
            raise ValueError(
                f"the option {name!r} of {loss!r} must be a finite number from 0 on, not {value!r}"
            )
    _check_clips(loss, loss_config)
    if not datums:
        raise ValueError("there are no datums; give at least one")
    for index, datum in enumerate(datums):
        _check_datum(config, datum, _LOSSES[loss], f"datum {index}")
        if datum.inputs.keys() != datums[0].inputs.keys():
            names = f"{', '.join(datum.inputs)}, and datum 0 {', '.join(datums[0].inputs)}"
            raise ValueError(f"datum {index} has other inputs than datum 0: it has {names}")


def _check_clips(loss: str, config: LossConfig) -> None:
    """Raise ``ValueError`` if the lowest ratio that is not clipped is above the highest one."""
    low, high = (
        float(config.get(name, default)) for name, default in zip(_CLIPS, _LOSSES[loss].clips, strict=True)
    )
    if low > high:
        raise ValueError(
            f"{_CLIPS[0]} {low:g} of {loss!r} is above {_CLIPS[1]} {high:g}; give the lower one first"
        )


def _check_datum(config: ModelConfig, datum: Datum, loss: _Loss, name: str) -> None:
    length = len(datum.tokens)
    if not 0 < length <= config.context:
        raise ValueError(f"{name} has {length} tokens; the model takes 1 to {config.context}")
    _check_tokens(config, torch.as_tensor(np.asarray(datum.tokens)), name)
    for key in loss.required:
        if key not in datum.inputs:
            raise ValueError(f"{name} has no {key!r}, which the loss needs: {', '.join(loss.required)}")
    for key, values in datum.inputs.items():
        if key not in (*loss.required, *loss.optional):
            known = ", ".join((*loss.required, *loss.optional))
            raise ValueError(f"{name} has the input {key!r}, which the loss does not use; it uses {known}")
        _check_shape(key, values, length, datum.inputs["target_tokens"], name, config.vocabulary)
    _check_tokens(config, datum.inputs["target_tokens"], f"target_tokens of {name}")
    low, high = (datum.inputs.get(key) for key in _CLIPS)
    for key, values in zip(_CLIPS, (low, high), strict=True):
        if values is not None and bool((values < 0).any()):
            raise ValueError(f"{key} of {name} has a value below 0")
    if low is not None and high is not None and bool((low > high).any()):
        raise ValueError(f"{_CLIPS[0]} of {name} is above {_CLIPS[1]} at some token")


def _check_shape(key: str, values: Tensor, length: int, targets: Tensor, name: str, most: int) -> None:
    """Raise ``ValueError`` for a wrong shape; a token has ``most`` targets at most."""
    if key == "target_tokens" and (values.dim() not in (1, 2) or values.is_floating_point()):
        raise ValueError(
            f"target_tokens of {name} must be integers of the shape ({length},) or ({length}, K)"
        )
    if key == "target_tokens" and values.dim() == 2 and not 0 < values.shape[1] <= most:
        raise ValueError(f"target_tokens of {name} has {values.shape[1]} targets a token; give 1 to {most}")
    if len(values) != length:
        raise ValueError(f"{key} of {name} has {len(values)} entries, but the row has {length} tokens")
    if values.shape != targets.shape:
        shapes = f"{tuple(values.shape)}, and target_tokens {tuple(targets.shape)}"
        raise ValueError(f"{key} of {name} has the shape {shapes}; they must be equal")
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise ValueError(f"{key} of {name} has a value that is not finite")


def _check_tokens(config: ModelConfig, tokens: Tensor, name: str) -> None:
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < config.vocabulary:
        wrong = int(tokens[(tokens < 0) | (tokens >= config.vocabulary)][0])
        raise ValueError(f"{name} has the token {wrong}; the model has tokens 0 to {config.vocabulary - 1}")
