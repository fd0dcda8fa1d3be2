"""Environment steps a second of the native vector forms, and of envpool's CartPole at the same size.

Ours run in one thread; envpool gets as many as there are cores.
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium as gym
import numpy as np

import envweave_gym  # noqa: F401 - registers the IDs
from benchmarks.rounds import interleave, show
from envweave_gym.core.faults import MissingExtra, need

NUM_ENVS, ROUNDS, SECONDS = 1024, 9, 0.4
THREADS = os.cpu_count() or 1
PEER = "envpool CartPole-v1"


def rate(env: Any, actions: np.ndarray) -> float:
    """Environment steps a second; rows that are being reset count, as they do for every peer."""
    count, steps, started = len(actions), 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        for i in range(20):
            env.step(actions[(steps + i) % count])
        steps += 20
    return steps * NUM_ENVS / (time.perf_counter() - started)


def ours(env_id: str, mode: str) -> tuple[Any, np.ndarray]:
    env = gym.make_vec(env_id, num_envs=NUM_ENVS, autoreset_mode=mode)
    env.reset(seed=0)
    high = int(env.single_action_space.n)
    return env, np.random.default_rng(0).integers(0, high, (64, NUM_ENVS))


def envpool_cartpole() -> tuple[Any, np.ndarray]:
    envpool = need("envpool", "bench", "the peer of the native vectors")
    env = envpool.make_gymnasium("CartPole-v1", num_envs=NUM_ENVS, num_threads=THREADS, seed=0)
    env.reset()
    return env, np.random.default_rng(0).integers(0, 2, (64, NUM_ENVS)).astype(np.int32)


def main() -> None:
    try:
        peer = envpool_cartpole()
    except MissingExtra as error:
        raise SystemExit(str(error)) from None
    contestants = {
        "LineWorld-v0, NextStep": ours("envweave/LineWorld-v0", "NextStep"),
        "LineWorld-v0, SameStep": ours("envweave/LineWorld-v0", "SameStep"),
        "CodeFix-v0, NextStep": ours("envweave/CodeFix-v0", "NextStep"),
        "CodeFix-v0, SameStep": ours("envweave/CodeFix-v0", "SameStep"),
        PEER: peer,
    }
    rates = interleave({name: lambda p=pair: rate(*p) for name, pair in contestants.items()}, ROUNDS)
    rows = [
        {
            "environment": name,
            "N": NUM_ENVS,
            "threads": THREADS if name == PEER else 1,
            "million steps/s": value / 1e6,
            "times envpool": value / rates[PEER],
        }
        for name, value in rates.items()
    ]
    show("Vectors: native vector forms at N = 1024", rows)


if __name__ == "__main__":
    main()
