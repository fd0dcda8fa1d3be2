"""Transformer of the Llama family (Llama, Qwen2, Qwen3) over packed tokens, with frozen weights and LoRA."""

from __future__ import annotations

from dataclasses import dataclass


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


class Transformer:
    """Decoder-only transformer with frozen weights; adapters are given to each pass."""

    config: ModelConfig
