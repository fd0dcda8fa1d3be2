"""Containers: from ``gym.make(ID, backend="docker")`` to the first observation, and what a step costs.

The start is measured beside ``docker run`` of the same image, which returns when the container runs and long
before anything serves in it: cold it may take 0.8 s more, out of a pool that is full 0.05 s. The step is
measured beside the private server of ``backend="subprocess"``.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

import gymnasium as gym

import envweave_gym  # noqa: F401 - registers the IDs
from benchmarks.rounds import interleave, show
from envweave_gym.registry.make import warm_up

ID, IMAGE = "envweave/Counter-v0", "envweave-core"
POOLED = {"pids": 500}
"""What sets the containers of the pool apart from the cold ones."""
MOST_COLD, MOST_WARM = 0.8, 0.05
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


def warm_observation() -> float:
    """The same, where the pool is full and nobody uses a container: the next one is started meanwhile."""
    warm_up(ID, 1, **POOLED)
    started = time.perf_counter()
    env = gym.make(ID, backend="docker", warm=1, **POOLED)
    env.reset(seed=0)
    seconds = time.perf_counter() - started
    env.close()
    warm_up(ID, 1, **POOLED)  # so that the next contestant is alone
    return seconds


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
            "the same, out of a warm pool": warm_observation,
        },
        STARTS,
    )
    warm_up(ID, 0, **POOLED)
    most = {
        "make to first observation": starts["docker run"] + MOST_COLD,
        "the same, out of a warm pool": MOST_WARM,
    }
    rows = [{"what": name, "seconds": value, "at most": most.get(name, "")} for name, value in starts.items()]
    show("Container starts: seconds", rows)
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
