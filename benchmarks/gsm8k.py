"""Episodes a second of GSM8K against a plain class over a list of dicts, as one writes it by hand.

An episode is a reset and a step. All play the same problems in turn and reply with the solution itself, so
each reply is a text of several lines. Time is that of the thread alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec

import envweave_gym  # noqa: F401 - the IDs
from benchmarks.rounds import interleave, show
from envweave_gym.data.gsm8k import GSM8K
from envweave_gym.data.sources import FOLDER, SYNTHETIC, rows_of

ROUNDS, SECONDS = 15, 0.25
NUMBER = re.compile(r"#### (-?[\d.,]+)")


class ByHand:
    """GSM8K as it is written in an afternoon."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.rows = rows

    def reset(self, index: int) -> str:
        self.row = self.rows[index]
        return f"Solve the problem. End with '#### ' and a number.\n\n{self.row['question']}"

    def step(self, reply: str) -> float:
        return float(self._number(reply) == self._number(self.row["answer"]))

    def _number(self, text: str) -> float | None:
        found = NUMBER.findall(text)
        return float(found[-1].replace(",", "")) if found else None


def by_hand(rows: list[dict[str, str]]) -> float:
    env, done, ends, started = ByHand(rows), 0, time.perf_counter() + SECONDS, time.thread_time()
    while time.perf_counter() < ends:
        for index in range(256):
            env.reset(index)
            assert env.step(rows[index]["answer"]) == 1.0
        done += 256
    return done / (time.thread_time() - started)


def ours(env_id: str, rows: list[dict[str, str]], dataset: str, **kwargs: Any) -> float:
    """Episodes a second of an ID; with options a reply is an index, and a right one in four."""
    with closing(gym.make(env_id, dataset=dataset, **kwargs)) as env:
        replies: list[Any] = [row["answer"] for row in rows[:256]]
        if "MCQ" in env_id:
            replies = [index % 4 for index in range(256)]
        options = [{"index": index} for index in range(256)]
        env.reset(seed=0)
        done, ends, started = 0, time.perf_counter() + SECONDS, time.thread_time()
        while time.perf_counter() < ends:
            for chosen, reply in zip(options, replies, strict=True):
                env.reset(options=chosen)
                env.step(reply)
            done += 256
        return done / (time.thread_time() - started)


MEMORY = """
import gc, sys, gymnasium, psutil, envweave_gym

def used(count):
    kept.extend(gymnasium.make(sys.argv[1], dataset=sys.argv[2]) for _ in range(count))
    for env in kept:
        env.reset(seed=1)
        env.step(1 if "MCQ" in sys.argv[1] else "#### 72")
    gc.collect()
    return psutil.Process().memory_full_info().uss

kept = []
one = used(1)
print(one / 2**20, used(255) / one)
"""


def memory(env_id: str, dataset: str) -> tuple[float, float]:
    """The memory of a process with one environment in MiB, and how much more it is with 256."""
    command = [sys.executable, "-c", MEMORY, env_id, dataset]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    one, more = map(float, done.stdout.split())
    return one, more


def data(folder: Path) -> tuple[str, list[dict[str, str]]]:
    """The real data where this machine has them, else generated problems in a file of the same form."""
    dataset = GSM8K.hub if os.environ.get(FOLDER) else SYNTHETIC
    rows = [msgspec.structs.asdict(row) for row in rows_of(GSM8K, dataset, "train")]
    if dataset == GSM8K.hub:
        return dataset, rows
    path = folder / "gsm8k_train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path), rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset, rows = data(Path(folder))
        contestants = {
            "a plain class": partial(by_hand, rows),
            "GSM8K-v0": partial(ours, "envweave/GSM8K-v0", rows, dataset),
            "GSM8K-v0, chat": partial(ours, "envweave/GSM8K-v0", rows, dataset, observation="chat"),
            "GSM8KMCQ-v0": partial(ours, "envweave/GSM8KMCQ-v0", rows, dataset),
        }
        rates = interleave(contestants, ROUNDS)
        plain = rates["a plain class"]
        speeds = [
            {"who": who, "resets + steps/s": rate, "of it": rate / plain} for who, rate in rates.items()
        ]
        show(f"GSM8K: resets and steps a second, {len(rows)} problems", speeds)
        used = []
        for env_id in ("envweave/GSM8K-v0", "envweave/GSM8KMCQ-v0"):
            one, more = memory(env_id, dataset)
            used.append({"ID": env_id, "one, MiB": one, "256 / one": more})
        show("GSM8K memory: a process with 256 environments over one with one", used)


if __name__ == "__main__":
    main()
