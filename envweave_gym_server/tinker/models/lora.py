"""LoRA adapters: trainable low-rank changes of a transformer's linear layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from envweave_gym_server.tinker.models.llama import LowRank, LowRankWeights, ModelConfig, Site

ALPHA = 32.0
"""Scale of a change is ``ALPHA / rank``, as in the hosted service."""


class _Factors(NamedTuple):
    """The trainable factors of one site: the first ones of all its parts joined, the second ones apart."""

    first: Tensor
    """(parts * rank, inputs)"""
    seconds: list[Tensor]
    """(outputs, rank) of each part"""


class _Part(NamedTuple):
    name: str
    """The part's name in Hugging Face's and PEFT's files."""
    outputs: int


class FrozenAdapter:
    """The scaled weights of an adapter at one time, which training after it does not change."""

    def __init__(self, weights: LowRankWeights) -> None:
        self.weights = weights
        self.size = sum(one.numel() * one.element_size() for site in weights.values() for one in site)
        """Bytes in memory; more than those of the parameters, as the zeros between joined layers are stored."""


class LoraAdapter:
    """A trainable adapter of one base model; a new one changes nothing until it is trained."""

    def __init__(
        self,
        config: ModelConfig,
        rank: int,
        seed: int = 0,
        *,
        train_attn: bool = True,
        train_mlp: bool = True,
        train_unembed: bool = True,
    ) -> None:
        """Draw the first factors from ``seed``; the second ones are zero. The flags select the layers."""
        if rank < 1:
            raise ValueError(f"the rank of an adapter must be at least 1, not {rank}")
        if not (train_attn or train_mlp or train_unembed):
            raise ValueError("one of train_attn, train_mlp and train_unembed must be true")
        self.config, self.rank = config, rank
        names = [*["qkv", "out"] * train_attn, *["gate_up", "down"] * train_mlp]
        sites = [Site(layer, name) for layer in range(config.layers) for name in names]
        sites += [Site(config.layers, "unembed")] * train_unembed
        generator = torch.Generator().manual_seed(seed)
        self._factors = {site: _initial(config, site, rank, generator) for site in sites}

    def parameters(self) -> list[Tensor]:
        """Return the trainable tensors in a fixed order, for an optimiser."""
        return [tensor for first, seconds in self._factors.values() for tensor in (first, *seconds)]

    def weights(self) -> LowRankWeights:
        """Return the scaled weights for a pass whose gradient reaches the parameters."""
        scale = ALPHA / self.rank
        return {
            site: LowRank(first, scale * (torch.block_diag(*seconds) if len(seconds) > 1 else seconds[0]))
            for site, (first, seconds) in self._factors.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Return copies of the weights by PEFT's names, ``model.layers.0.self_attn.q_proj.lora_A.weight``."""
        return {name: tensor.detach().clone() for name, tensor in self._named()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights into the parameters; raise ``ValueError`` if names or shapes differ."""
        own = dict(self._named())
        if different := sorted(own.keys() ^ state.keys()):
            raise ValueError(
                f"the saved adapter has other layers than this one: {different[0]!r} is in one of them only"
            )
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                given, expected = tuple(state[name].shape), tuple(tensor.shape)
                raise ValueError(f"{name!r} of the saved adapter has the shape {given}, not {expected}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def snapshot(self) -> FrozenAdapter:
        """Return the weights of now, ready for sampling."""
        with torch.no_grad():
            weights = {
                site: LowRank(first.detach().clone(), second.detach().clone())
                for site, (first, second) in self.weights().items()
            }
        return FrozenAdapter(weights)

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the factors of each part by name; those of joined parts are views."""
        for site, (first, seconds) in self._factors.items():
            parts = _parts(self.config, site)
            for part, own, second in zip(parts, first.split(self.rank), seconds, strict=True):
                yield f"{part.name}.lora_A.weight", own
                yield f"{part.name}.lora_B.weight", second


def _initial(config: ModelConfig, site: Site, rank: int, generator: torch.Generator) -> _Factors:
    """Draw first factors with variance 1 / inputs; second factors of zero make the change zero."""
    inputs, parts = _inputs(config, site), _parts(config, site)
    uniform = torch.rand(len(parts) * rank, inputs, generator=generator) * 2 - 1
    first = (uniform * math.sqrt(3 / inputs)).requires_grad_()
    return _Factors(first, [torch.zeros(part.outputs, rank, requires_grad=True) for part in parts])


def _inputs(config: ModelConfig, site: Site) -> int:
    sizes = {"out": config.qkv_sizes[0], "down": config.feed_forward_width}
    return sizes.get(site.name, config.width)


def _parts(config: ModelConfig, site: Site) -> list[_Part]:
    layer = f"model.layers.{site.layer}."
    if site.name == "qkv":
        sizes = zip("qkv", config.qkv_sizes, strict=True)
        return [_Part(f"{layer}self_attn.{part}_proj", size) for part, size in sizes]
    if site.name == "gate_up":
        return [_Part(f"{layer}mlp.{part}_proj", config.feed_forward_width) for part in ("gate", "up")]
    if site.name == "unembed":
        return [_Part("lm_head", config.vocabulary)]
    name = "self_attn.o_proj" if site.name == "out" else "mlp.down_proj"
    return [_Part(f"{layer}{name}", config.width)]
