"""The tiny base model: about a million parameters, trained in seconds on synthetic chats, and cached."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor

from envweave_gym.os_support.xdg_folders import cache_folder
from envweave_gym_server.tinker.models.base_model import config_of
from envweave_gym_server.tinker.models.cache_folders import made_once
from envweave_gym_server.tinker.models.llama import ModelConfig, Transformer, precision_for
from envweave_gym_server.tinker.models.prefix_packing import pack
from envweave_gym_server.tinker.models.target_logprobs import target_logprobs
from envweave_gym_server.tinker.models.tiny_corpus import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    Text,
    corpus,
)
from envweave_gym_server.tinker.models.tokenizer_files import use_byte_level, write_tokenizer

TINY_NAME = "envweave/tiny"
"""Name under which the server offers the model."""
_VERSION = 2
"""Part of the folder's name: count it up with every change of the corpus or of the training."""
_SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
_MAX_TOKENS = 1024
_STEPS = 150
_CHATS_PER_STEP = 32
_LEARNING_RATE = 3e-3
_WARMUP_STEPS = 20
_PROMPT_WEIGHT = 0.03
"""Weight of a token of a prompt in the loss; that of a reply is 1."""
_SEED = 0


def tiny_model_folder(cache: Path | None = None) -> Path:
    """Return the folder of the tiny model for ``load_base``; train it first if the cache does not have it.

    ``cache`` is the folder of caches, ``~/.cache/envweave`` or that of ``XDG_CACHE_HOME`` by default.
    """
    return made_once((cache or cache_folder()) / f"tiny-{_VERSION}", train_tiny_model)


def train_tiny_model(folder: Path) -> None:
    """Train the tokenizer and the model, and write them to an empty folder."""
    tokenizer = _trained_tokenizer()
    ids = {name: tokenizer.token_to_id(token) for name, token in {"bos": IM_START, "eos": IM_END}.items()}
    settings = {
        **_SHAPE,
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
    }
    config = config_of(settings)
    weights = _initial(config)
    with precision_for(config):
        _train(config, weights, tokenizer)
    write_tokenizer(tokenizer, folder, bos=IM_START, eos=IM_END, pad=END_OF_TEXT, chat_template=CHAT_TEMPLATE)
    save_file({name: weight.detach() for name, weight in weights.items()}, folder / "model.safetensors")
    _write_json(folder / "config.json", settings)
    _write_json(folder / "generation_config.json", {"eos_token_id": ids["eos"]})


def _trained_tokenizer() -> Tokenizer:
    draw = corpus(_SEED)
    tokenizer = Tokenizer(models.BPE())
    use_byte_level(tokenizer, [pre_tokenizers.Digits(individual_digits=True)])
    trainer = trainers.BpeTrainer(
        vocab_size=_MAX_TOKENS,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = ("".join(piece.text for piece in draw()) for _ in range(1000))
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _initial(config: ModelConfig) -> dict[str, Tensor]:
    """Draw weights with variance 1 / inputs; norms are 1."""
    generator = torch.Generator().manual_seed(_SEED)

    def drawn(outputs: int, inputs: int) -> Tensor:
        return (torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)).requires_grad_()

    def ones() -> Tensor:
        return torch.ones(config.width, requires_grad=True)

    width, feed_forward = config.width, config.feed_forward_width
    queries, keys, _ = config.qkv_sizes
    weights = {
        "model.embed_tokens.weight": drawn(config.vocabulary, width),
        "model.norm.weight": ones(),
    }
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        for name, outputs, inputs in (
            ("self_attn.q_proj", queries, width),
            ("self_attn.k_proj", keys, width),
            ("self_attn.v_proj", keys, width),
            ("self_attn.o_proj", width, queries),
            ("mlp.gate_proj", feed_forward, width),
            ("mlp.up_proj", feed_forward, width),
            ("mlp.down_proj", width, feed_forward),
        ):
            weights[f"{prefix}{name}.weight"] = drawn(outputs, inputs)
        weights[f"{prefix}input_layernorm.weight"] = ones()
        weights[f"{prefix}post_attention_layernorm.weight"] = ones()
    return weights


def _train(config: ModelConfig, weights: dict[str, Tensor], tokenizer: Tokenizer) -> None:
    draw = corpus(_SEED + 1)
    optimiser = torch.optim.AdamW(weights.values(), lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, _course)
    for _ in range(_STEPS):
        loss = _loss(config, weights, [_tokens(tokenizer, draw()) for _ in range(_CHATS_PER_STEP)])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        schedule.step()


def _course(step: int) -> float:
    """Return the learning rate's factor: a linear rise, then half a cosine down to 0."""
    return min(1.0, (step + 1) / _WARMUP_STEPS) * (1 + math.cos(math.pi * step / _STEPS)) / 2


class _Tokens(NamedTuple):
    tokens: list[int]
    weights: list[float]


def _tokens(tokenizer: Tokenizer, text: Text) -> _Tokens:
    parts = [(tokenizer.encode(piece.text).ids, 1.0 if piece.is_reply else _PROMPT_WEIGHT) for piece in text]
    return _Tokens(
        [token for tokens, _ in parts for token in tokens],
        [weight for tokens, weight in parts for _ in tokens],
    )


def _loss(config: ModelConfig, weights: dict[str, Tensor], rows: list[_Tokens]) -> Tensor:
    """Return the weighted mean of the negative log-likelihoods of all tokens after the first."""
    transformer = Transformer(config, weights)
    packed = pack([row.tokens[:-1] for row in rows])
    hidden = transformer.forward(packed, {})
    nodes = torch.cat([torch.from_numpy(path) for path in packed.paths])
    targets = torch.tensor([token for row in rows for token in row.tokens[1:]])
    factors = torch.tensor([weight for row in rows for weight in row.weights[1:]])
    return -(target_logprobs(transformer, {}, hidden, nodes, targets) * factors).sum() / factors.sum()


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
