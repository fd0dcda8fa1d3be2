"""Ray actors: 4 with 64 environments each whose steps take a core's millisecond, and what a step costs.

Ideal is the work alone, spread over the cores at hand: 4 x 64 x 1 ms over 2 cores are 128 ms. How near
anything comes to that at this moment is measured in between, with bare processes that do the same work.
The cost of a step is measured beside bare actors that are sent the same bytes and answer with as many: such
that do nothing else, and such that step the same environments, whose time is nobody's overhead. Steps go
over the Unix sockets of actors on the same machine; calls through Ray, as to other machines, are measured too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np

import envweave_gym
from benchmarks.environments import BURNER, WORK_S, burn
from benchmarks.rounds import show
from envweave_gym.providers.ray import actor_connector
from envweave_gym.wire.messages import Step, encode
from envweave_gym.wire.values import pack

ACTORS, ROWS = 4, 64
ROUNDS, STEPS, CHEAP_STEPS = 11, 8, 200
LINE = "envweave/LineWorld-v0"
BARE = "the same, and a step of the environments"


def ideal() -> float:
    """Seconds that a step of all environments takes where nothing but their work takes time."""
    return ACTORS * ROWS * WORK_S / min(ACTORS, len(os.sched_getaffinity(0)))


def seconds_a_step(step: Callable[[], Any], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - started) / steps


class Bare:
    """Processes that only do the work of an actor's rows, at a byte on a pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipes, self._processes = [], []
        for _ in range(ACTORS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def step(self) -> None:
        for pipe in self._pipes:
            pipe.send(ROWS)
        for pipe in self._pipes:
            pipe.recv()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _work(pipe: Any) -> None:
    while True:
        for _ in range(pipe.recv()):
            burn(WORK_S)
        pipe.send(None)


class Echo:
    """An actor that answers with bytes it has, and may step the same environments beside."""

    def __init__(self, reply: bytes, env_id: str = "") -> None:
        self._reply, self._actions = reply, np.ones(ROWS, np.int64)
        self._env: Any = envweave_gym.make(env_id, num_envs=ROWS) if env_id else None
        if env_id:
            self._env.reset(seed=0)

    def answer(self, frame: bytes) -> bytes:
        return self._reply

    def step(self, frame: bytes) -> bytes:
        self._env.step(self._actions)
        return self._reply


def work_table() -> None:
    env = envweave_gym.make(BURNER, num_envs=ACTORS * ROWS, backend="ray", replicas=ACTORS)
    actions, bare = np.zeros(ACTORS * ROWS, np.int64), Bare()
    try:
        env.reset(seed=0)
        contestants: dict[str, Callable[[], Any]] = {
            "4 bare processes": bare.step,
            "RayVectorEnv, 4 actors": lambda: env.step(actions),
        }
        measured: dict[str, list[float]] = {who: [] for who in contestants}
        for _ in range(ROUNDS):
            for who, step in contestants.items():
                measured[who].append(seconds_a_step(step, STEPS))
    finally:
        bare.end()
        env.close()
    rows = [
        {
            "who": who,
            "ms a step": statistics.median(taken) * 1e3,
            "of ideal, median": ideal() / statistics.median(taken),
            "of ideal, best": ideal() / min(taken),
        }
        for who, taken in measured.items()
    ]
    show(f"Ray work: {ACTORS} x {ROWS} environments of 1 ms, ideal is {ideal() * 1e3:.0f} ms a step", rows)


def cost_table() -> None:
    import ray

    rows = ACTORS * ROWS
    env, calls = (envweave_gym.make(LINE, num_envs=rows, backend="ray", replicas=ACTORS) for _ in range(2))
    env.reset(seed=0)
    with patch.object(actor_connector, "connect", side_effect=OSError):  # so that it calls through Ray
        calls.reset(seed=0)
    actions = np.ones(rows, np.int64)
    frame = encode(Step(1000, pack(actions[:ROWS].astype(np.uint8))))
    size = _reply_size(env, actions)
    echoes = [ray.remote(Echo).remote(bytes(size)) for _ in range(ACTORS)]
    steppers = [ray.remote(Echo).remote(bytes(size), LINE) for _ in range(ACTORS)]
    contestants: dict[str, Callable[[], Any]] = {
        "bare ray.get": lambda: ray.get([echo.answer.remote(frame) for echo in echoes]),
        BARE: lambda: ray.get([stepper.step.remote(frame) for stepper in steppers]),
        "RayVectorEnv": lambda: env.step(actions),
        "RayVectorEnv, by calls": lambda: calls.step(actions),
    }
    measured: dict[str, list[float]] = {who: [] for who in contestants}
    for step in contestants.values():
        seconds_a_step(step, 50)
    for _ in range(ROUNDS):
        for who, step in contestants.items():
            measured[who].append(seconds_a_step(step, CHEAP_STEPS) / ACTORS * 1e6)
    env.close()
    calls.close()
    middle = {who: statistics.median(taken) for who, taken in measured.items()}
    table = [
        {
            "who": who,
            "us a step and actor": middle[who],
            "best round": min(taken),
            "times bare ray.get": middle[who] / middle["bare ray.get"],
            "times the same step": middle[who] / middle[BARE],
            "the same, best rounds": min(taken) / min(measured[BARE]),
        }
        for who, taken in measured.items()
    ]
    show(
        f"Ray cost: a step of {ACTORS} actors with {ROWS} rows each, {len(frame)} bytes in and {size} out",
        table,
    )


def _reply_size(env: Any, actions: Any) -> int:
    """The bytes of one actor's reply."""
    sizes: list[int] = []
    session = env.unwrapped._groups[0].session()
    read = session._read

    def sized(frame: Any) -> Any:
        sizes.append(len(frame))
        return read(frame)

    session._read = sized
    for _ in range(5):
        env.step(actions)
    del session._read
    return max(sizes)


def main() -> None:
    cost_table()
    work_table()


if __name__ == "__main__":
    main()
