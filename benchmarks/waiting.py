"""Times what users wait for: rows that sleep, resets without a seed, a container whose owner is killed.

Rows of ``envweave/CodeAct-v0`` that sleep for half a second are stepped at the same time and one after the
other. Resets of a foreign environment whose seeding is slow, as Atari's is, are timed unseeded and seeded.
The container of an owner that gets SIGKILL is watched until it has stopped.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym

import envweave_gym
from benchmarks.rounds import interleave, show
from envweave_gym.containers.engine import engine
from envweave_gym.core.faults import NotAvailable

ROWS, NAP_S, ROUNDS = 8, 0.5, 5
RESETS, SEEDING_S = 20, 0.05
MOST_S = 30.0
"""What the container of a killed owner may take to end."""
OWNER = """
import envweave_gym, gymnasium
env = gymnasium.make("envweave/Counter-v0", backend="docker", pids=501)
env.reset(seed=0)
print("ready", flush=True)
input()
"""


class SlowSeeds(gym.Env[int, int]):
    """Takes long whenever it is given a seed."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            time.sleep(SEEDING_S)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, True, False, {}


def step_time(env: Any) -> float:
    """Seconds that one step of all rows takes."""
    env.reset(seed=0)
    started = time.perf_counter()
    env.step([f"import time; time.sleep({NAP_S})"] * ROWS)
    return time.perf_counter() - started


def reset_time(env: Any) -> float:
    """Milliseconds a reset after the first."""
    env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(RESETS):
        env.step(0)
        env.reset()
    return (time.perf_counter() - started) / RESETS * 1e3


def outlived() -> float:
    """Seconds from the SIGKILL of an owner until its container has stopped."""
    client = engine()
    before = {one.id for one in client.containers.list()}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        (mine,) = [one for one in client.containers.list() if one.id not in before]
        owner.kill()
        started = time.perf_counter()
        while any(one.id == mine.id for one in client.containers.list(ignore_removed=True)):
            assert time.perf_counter() - started < MOST_S
            time.sleep(0.05)
    return time.perf_counter() - started


def rows() -> None:
    make = partial(envweave_gym.make, "envweave/CodeAct-v0", num_envs=ROWS)
    made = {
        "one after the other": make(vectorization_mode="sync"),
        "at the same time": make(),
        "the same, backend='subprocess'": make(backend="subprocess"),
    }
    timed: dict[str, Callable[[], float]] = {name: partial(step_time, env) for name, env in made.items()}
    seconds = interleave(timed, ROUNDS)
    for env in made.values():
        env.close()
    show(f"Rows that wait: seconds a step of {ROWS}", [{"rows": n, "seconds": s} for n, s in seconds.items()])


def resets() -> None:
    gym.register("benchmarks/SlowSeeds-v0", entry_point=SlowSeeds)
    made = {
        name: envweave_gym.make("benchmarks/SlowSeeds-v0", reproducible=reproducible)
        for name, reproducible in (("unseeded", False), ("reproducible=True", True))
    }
    timed: dict[str, Callable[[], float]] = {name: partial(reset_time, env) for name, env in made.items()}
    found = interleave(timed, ROUNDS)
    show(
        f"Resets of a foreign ID: milliseconds, where a seed takes {SEEDING_S * 1e3:.0f}",
        [{"resets": name, "ms": value} for name, value in found.items()],
    )


def ends() -> None:
    try:
        engine()
    except NotAvailable as error:
        print(f"\nContainers of a killed owner: {error}")
        return
    seconds = interleave({"container of a killed owner": outlived}, ROUNDS)
    show(
        "Containers of a killed owner: seconds until they end",
        [{"what": name, "seconds": value, "at most": MOST_S} for name, value in seconds.items()],
    )


def main() -> None:
    rows()
    resets()
    ends()


if __name__ == "__main__":
    main()
