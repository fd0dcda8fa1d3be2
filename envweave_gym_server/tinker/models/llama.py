"""Transformer of the Llama family (Llama, Qwen2, Qwen3) over packed tokens, with frozen weights and LoRA."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from envweave_gym_server.tinker.models.prefix_packing import Blocks, PackedTokens

WRITTEN_OUT_TOKENS = 640
"""Attention of at most this many tokens is written out: measured on CPU, torch's fused one is slower up to there."""

_SMALL_WIDTH = 256


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a transformer and the constants of its forward pass."""

    layers: int
    width: int
    """Size of a token's hidden state."""
    heads: int
    key_value_heads: int
    head_size: int
    feed_forward_width: int
    vocabulary: int
    context: int
    """Most tokens of a prompt and its continuation together."""
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tied: bool = True
    """Whether the output layer has the weights of the embedding."""
    attention_bias: bool = False
    """Whether the projections of queries, keys and values have a bias (Qwen2)."""
    query_key_norm: bool = False
    """Whether queries and keys are normalised per head (Qwen3)."""

    @property
    def qkv_sizes(self) -> list[int]:
        """Outputs of the projections of queries, keys and values."""
        return [self.heads * self.head_size, *[self.key_value_heads * self.head_size] * 2]


class Site(NamedTuple):
    """A linear layer, or several with the same input that run as one."""

    layer: int
    """``config.layers`` for the output layer."""
    name: str
    """``qkv``, ``out``, ``gate_up``, ``down``, or ``unembed``."""


class LowRank(NamedTuple):
    """A change of a linear layer: ``x @ first.T @ second.T`` is added to its output."""

    first: Tensor
    """(rank, inputs)"""
    second: Tensor
    """(outputs, rank), scaled"""


LowRankWeights = Mapping[Site, LowRank]


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer; projections with the same input are joined."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Projections(NamedTuple):
    """Queries (N, heads, size), and keys and values (N, key_value_heads, size), of N tokens."""

    queries: Tensor
    keys: Tensor
    values: Tensor


Attention = Callable[[int, Projections], Tensor]
"""Attention of one layer: its number and the projections of N tokens to their (N, heads * size) results."""


class Transformer:
    """Decoder-only transformer with frozen weights; adapters are given to each pass."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        """Take weights by their Hugging Face names; raise ``ValueError`` if one is missing or misshapen.

        If they require gradients, so do the results of the passes.
        """
        self.config = config
        read = partial(_read, weights)
        self.embedding = read("model.embed_tokens.weight", config.vocabulary, config.width)
        self.final_norm = read("model.norm.weight", config.width)
        self.unembedding = (
            self.embedding if config.tied else read("lm_head.weight", config.vocabulary, config.width)
        )
        self.layers = [_layer(config, read, f"model.layers.{layer}.") for layer in range(config.layers)]
        self._cosines, self._sines = _rotations(config)

    def forward(
        self,
        packed: PackedTokens,
        adapter: LowRankWeights,
        *,
        on_layer: Callable[[Projections], None] | None = None,
        recompute: bool = False,
    ) -> Tensor:
        """Return the final hidden states (N, width) of packed tokens.

        ``on_layer`` gets the projections of each layer, for a cache. With ``recompute``, the backward pass
        computes each layer again, which needs less memory.
        """

        fused = packed.is_one_sequence and len(packed) > WRITTEN_OUT_TOKENS
        blocks = None if fused else packed.blocks()

        def attend(_: int, projections: Projections) -> Tensor:
            if on_layer is not None:
                on_layer(projections)
            return _fused_attention(projections) if blocks is None else _attention(projections, blocks)

        hidden = self.embedding[packed.tokens]
        for layer in range(self.config.layers):
            step = partial(self.layer, layer, positions=packed.positions, adapter=adapter, attend=attend)
            hidden = checkpoint(step, hidden, use_reentrant=False) if recompute else step(hidden)
        return self.normalised(hidden, self.final_norm)

    def layer(
        self, layer: int, hidden: Tensor, *, positions: Tensor, adapter: LowRankWeights, attend: Attention
    ) -> Tensor:
        """Return the hidden states (N, width) after one layer."""
        weights = self.layers[layer]
        normalised = self.normalised(hidden, weights.attention_norm)
        joined = linear(normalised, weights.qkv, adapter.get(Site(layer, "qkv")), weights.qkv_bias)
        attended = attend(layer, self._project(weights, joined, positions))
        hidden = hidden + linear(attended, weights.out, adapter.get(Site(layer, "out")))
        normalised = self.normalised(hidden, weights.feed_forward_norm)
        gate, up = linear(normalised, weights.gate_up, adapter.get(Site(layer, "gate_up"))).chunk(2, -1)
        return hidden + linear(F.silu(gate) * up, weights.down, adapter.get(Site(layer, "down")))

    def logits(self, hidden: Tensor, adapter: LowRankWeights) -> Tensor:
        """Return the logits (N, vocabulary) of final hidden states."""
        return linear(hidden, self.unembedding, adapter.get(Site(self.config.layers, "unembed")))

    def normalised(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return RMS-normalised vectors."""
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self.config.norm_eps)

    def _project(self, weights: LayerWeights, joined: Tensor, positions: Tensor) -> Projections:
        """Split joined projections (N, …) into heads; normalise and rotate queries and keys."""
        queries, keys, values = (
            part.unflatten(-1, (-1, self.config.head_size))
            for part in joined.split(self.config.qkv_sizes, -1)
        )
        if weights.query_norm is not None and weights.key_norm is not None:
            queries = self.normalised(queries, weights.query_norm)
            keys = self.normalised(keys, weights.key_norm)
        cosines, sines = self._cosines[positions][:, None], self._sines[positions][:, None]  # (N, 1, size)
        return Projections(_rotated(queries, cosines, sines), _rotated(keys, cosines, sines), values)


@contextmanager
def precision_for(config: ModelConfig) -> Generator[None]:
    """Multiply in full float32 precision in the block if the model is small, else as the process is set.

    With "medium" precision, torch compiles a kernel for each new shape: a small model takes twice as long with it, and
    keeps the kernels in memory.
    """
    before = torch.get_float32_matmul_precision()
    if config.width < _SMALL_WIDTH:
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def linear(inputs: Tensor, weight: Tensor, change: LowRank | None, bias: Tensor | None = None) -> Tensor:
    """Return the output (N, outputs) of a linear layer with its low-rank change.

    A single row is computed as two: its matrix product would take another path in torch, with other rounding.
    """
    if len(inputs) == 1:
        return linear(inputs.expand(2, -1), weight, change, bias)[:1]
    output = F.linear(inputs, weight, bias)
    if change is None:
        return output
    return output + F.linear(F.linear(inputs, change.first), change.second)


def _attention(projections: Projections, blocks: Blocks) -> Tensor:
    """Attention written out, which keeps the shares (heads, blocks, length, seen) for the backward pass."""
    count, (heads, size) = len(projections.keys), projections.keys.shape[1:]
    number, length, seen = blocks.bias.shape
    queries = F.pad(projections.queries / math.sqrt(size), (0, 0, 0, 0, 0, number * length - count))
    grouped = (
        queries.view(number, length, heads, -1, size).permute(0, 2, 3, 1, 4).reshape(number, heads, -1, size)
    )
    keys, values = (
        F.embedding(blocks.seen, part.flatten(1)).unflatten(2, (heads, size)).transpose(1, 2)
        for part in (projections.keys, projections.values)
    )  # (blocks, heads, seen, size)
    scores = (grouped @ keys.transpose(2, 3)).view(number, heads, -1, length, seen)
    shares = (scores + blocks.bias[:, None, None]).softmax(-1)
    attended = (shares.view(number, heads, -1, seen) @ values).view(number, heads, -1, length, size)
    return attended.permute(0, 3, 1, 2, 4).reshape(number * length, -1)[:count]


def _fused_attention(projections: Projections) -> Tensor:
    """Attention of one sequence by torch's kernel."""
    queries, keys, values = (part.transpose(0, 1) for part in projections)  # (heads, N, size)
    repeats = queries.shape[0] // keys.shape[0]
    attended = F.scaled_dot_product_attention(
        queries[None],
        keys.repeat_interleave(repeats, 0)[None],
        values.repeat_interleave(repeats, 0)[None],
        is_causal=True,
    )
    return attended[0].transpose(0, 1).flatten(1)


def _rotated(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate vectors (N, heads, size) by their positions (RoPE)."""
    first, second = vectors.chunk(2, -1)
    return vectors * cosines + torch.cat([-second, first], -1) * sines


def _rotations(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (context, size) of the rotary embedding."""
    exponents = torch.arange(0, config.head_size, 2).float() / config.head_size
    angles = torch.arange(config.context).float()[:, None] / config.rope_theta**exponents
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def _layer(config: ModelConfig, read: Callable[..., Tensor], prefix: str) -> LayerWeights:
    width, feed_forward = config.width, config.feed_forward_width
    attention = prefix + "self_attn."
    parts = list(zip("qkv", config.qkv_sizes, strict=True))
    qkv = [read(f"{attention}{part}_proj.weight", size, width) for part, size in parts]
    biases = [read(f"{attention}{part}_proj.bias", size) for part, size in parts if config.attention_bias]
    norms = [
        config.query_key_norm and read(f"{attention}{part}_norm.weight", config.head_size) for part in "qk"
    ]
    return LayerWeights(
        attention_norm=read(prefix + "input_layernorm.weight", width),
        qkv=torch.cat(qkv),
        qkv_bias=torch.cat(biases) if biases else None,
        query_norm=norms[0] if isinstance(norms[0], Tensor) else None,
        key_norm=norms[1] if isinstance(norms[1], Tensor) else None,
        out=read(attention + "o_proj.weight", width, config.qkv_sizes[0]),
        feed_forward_norm=read(prefix + "post_attention_layernorm.weight", width),
        gate_up=torch.cat(
            [read(f"{prefix}mlp.{part}_proj.weight", feed_forward, width) for part in ("gate", "up")]
        ),
        down=read(prefix + "mlp.down_proj.weight", width, feed_forward),
    )


def _read(weights: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    weight = weights.get(name)
    if weight is None:
        raise ValueError(f"the model has no weight {name!r}; it is not a llama, qwen2 or qwen3 model")
    if tuple(weight.shape) != shape:
        raise ValueError(f"the weight {name!r} has the shape {tuple(weight.shape)}; its config says {shape}")
    return weight.float().contiguous()
