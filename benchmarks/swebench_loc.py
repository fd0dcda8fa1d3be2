"""What trivial solvers score at choosing the file that must change, and how fast questions are asked.

Needs the 300 rows of SWE-bench Lite and their candidates in the folder that ENVWEAVE_DATA names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.rounds import interleave, show
from envweave_gym.core.seeding import mix
from envweave_gym.data.sources import FOLDER
from envweave_gym.envs.swebench.baseline_solvers import Accuracy, accuracies
from envweave_gym.envs.swebench.file_distractors import Candidates
from envweave_gym.envs.swebench.localisation import SWEBenchLocEnv

SEEDS = range(5)
EPISODES, ROUNDS = 300, 7


class MostAlikeEnv(SWEBenchLocEnv):
    """Naive: the files whose paths share most words with the issue."""

    def wrong_options(self, candidates: Candidates, key: int) -> tuple[str, ...]:
        return candidates.lexical[: self.options - 1]


class AnyAnswersEnv(SWEBenchLocEnv):
    """Naive: any answers of other issues."""

    def wrong_options(self, candidates: Candidates, key: int) -> tuple[str, ...]:
        answers = sorted(set(candidates.popular))
        order = sorted(range(len(answers)), key=lambda place: mix(key, place))
        return tuple(answers[place] for place in order[: self.options - 1])


VARIANTS: dict[str, Callable[[], SWEBenchLocEnv]] = {
    "file of candidates": SWEBenchLocEnv,
    "rows alone": lambda: SWEBenchLocEnv(candidates="rows"),
    "file, masked": lambda: SWEBenchLocEnv(mask_paths=True),
    "naive: most alike": MostAlikeEnv,
    "naive: any answers": lambda: AnyAnswersEnv(candidates="rows"),
}


def main() -> None:
    if not os.environ.get(FOLDER):
        print(f"\nSWE-bench loc: {FOLDER} names no folder with the 300 rows and their candidates")
        return
    measured = {name: accuracies(make(), SEEDS) for name, make in VARIANTS.items()}
    titles = {
        "SWE-bench loc: all 300 issues, solver / its inverse": _everywhere,
        "SWE-bench loc no leak: issues that do not name the file, solver / its inverse": _without_leak,
    }
    for title, figure in titles.items():
        solvers = next(iter(measured.values()))
        show(
            title, [{"solver": s, **{name: figure(of[s]) for name, of in measured.items()}} for s in solvers]
        )
    speeds = {name: partial(_speed, make()) for name, make in list(VARIANTS.items())[:3]}
    rows = [
        {"candidates": name, "resets+steps/s": speed} for name, speed in interleave(speeds, ROUNDS).items()
    ]
    show("SWE-bench loc speed: in process", rows)


def _everywhere(accuracy: Accuracy) -> str:
    return f"{accuracy.direct:.2f} / {accuracy.inverse:.2f}"


def _without_leak(accuracy: Accuracy) -> str:
    return f"{accuracy.direct_no_leak:.2f} / {accuracy.inverse_no_leak:.2f}"


def _speed(env: Any) -> float:
    """Resets and steps a second of its own thread's time."""
    started = time.thread_time()
    for seed in range(EPISODES):
        env.reset(seed=seed)
        env.step(0)
    return EPISODES / (time.thread_time() - started)
