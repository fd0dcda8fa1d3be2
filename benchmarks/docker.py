"""Containers: from ``gym.make(ID, backend="docker")`` to the first observation, and what a step costs.

The start is measured beside ``docker run`` of the same image, which returns when the container runs and long
before anything serves in it; the step beside the private server of ``backend="subprocess"``.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

import gymnasium as gym

import envweave_gym  # noqa: F401 - registers the IDs
from benchmarks.rounds import interleave, show

ID, IMAGE = "envweave/Counter-v0", "envweave-core"
STARTS, ROUNDS, STEPS = 7, 9, 1000


def docker_run() -> float:
    """Seconds until ``docker run`` has started a container."""
    started = time.perf_counter()
    command = ["docker", "run", "--detach", "--rm", "--publish", "127.0.0.1::8000", IMAGE]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - started
    subprocess.run(["docker", "rm", "--force", run.stdout.strip()], capture_output=True, check=True)
    return seconds


def first_observation() -> float:
    """Seconds until an environment in a container of its own has been reset."""
    started = time.perf_counter()
    env = gym.make(ID, backend="docker")
    env.reset(seed=0)
    seconds = time.perf_counter() - started
    env.close()
    return seconds


def another_observation() -> float:
    """The same, where a container runs already."""
    with gym.make(ID, backend="docker") as env:
        env.reset(seed=0)
        return first_observation()


def step_time(env: gym.Env[Any, Any]) -> float:
    """Microseconds a step."""
    env.reset(seed=0)
    started = time.perf_counter()
    for step in range(STEPS):
        if step % 90:
            env.step({"delta": 0})
        else:
            env.reset()
    return (time.perf_counter() - started) / STEPS * 1e6


def main() -> None:
    starts = interleave(
        {
            "docker run": docker_run,
            "make to first observation": first_observation,
            "the same, beside another": another_observation,
        },
        STARTS,
    )
    show("Container starts: seconds", [{"what": name, "seconds": value} for name, value in starts.items()])
    with gym.make(ID, backend="docker") as boxed, gym.make(ID, backend="subprocess") as bare:
        steps = interleave(
            {"docker": lambda: step_time(boxed), "subprocess": lambda: step_time(bare)}, ROUNDS
        )
    ratio = steps["subprocess"] / steps["docker"]
    rows = [{"backend": name, "microseconds": value} for name, value in steps.items()]
    show(
        "Container steps: microseconds",
        [*rows, {"backend": "speed, docker / subprocess", "microseconds": ratio}],
    )


if __name__ == "__main__":
    main()
