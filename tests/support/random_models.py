"""Random small transformers of the Llama family, in ours and in transformers' classes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from envweave_gym_server.tinker.models.base_model import config_of
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.lora import LoraAdapter

CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
VOCABULARY = 61
CONTEXT = 64


def reference_model(family: str = "llama", *, tied: bool = True, seed: int = 0) -> Any:
    """A model of transformers with random weights, large enough that distributions differ."""
    config_class, model_class = CLASSES[family]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        **({} if family == "qwen2" else {"head_dim": 16}),
    )
    torch.manual_seed(seed)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def transformer_of(model: Any) -> Transformer:
    return Transformer(config_of(model.config.to_dict()), model.state_dict())


def random_transformer(seed: int = 0) -> Transformer:
    return transformer_of(reference_model(seed=seed))


def random_adapter(transformer: Transformer, seed: int = 0, **flags: bool) -> LoraAdapter:
    """An adapter whose second factors are not zero, so that it changes the model."""
    adapter = LoraAdapter(transformer.config, 4, seed, **flags)
    generator = torch.Generator().manual_seed(seed)
    adapter.load(
        {
            name: 0.1 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in adapter.state().items()
        }
    )
    return adapter
