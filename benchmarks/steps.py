"""Steps a second of ``gym.make`` against the same class under Gymnasium's own default wrappers.

Two measures: ``benchmark_step``, Gymnasium's own tool, which samples an action for every step; and a bare
loop over actions drawn before, which hides nothing of what a wrapper costs. The loop counts the time of its
own thread: what a sandbox does meanwhile and what else a machine is busy with are no cost of a wrapper.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.utils.performance import benchmark_step
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

import envweave_gym
from benchmarks.rounds import interleave, show

ROUNDS, SECONDS = 15, 0.25


def ours(env_id: str) -> gym.Env[Any, Any]:
    """What ``gym.make`` builds, over generated data where it reads any."""
    return gym.make(env_id, **envweave_gym.cards()[env_id].trial)


def by_hand(env_id: str) -> gym.Env[Any, Any]:
    """What ``gym.make`` of a class registered the usual way would build."""
    card = envweave_gym.cards()[env_id]
    with closing(ours(env_id)) as made:
        core = type(made.unwrapped)
    env: gym.Env[Any, Any] = OrderEnforcing(PassiveEnvChecker(core(**card.trial)))
    limit = card.max_steps
    return env if limit is None else TimeLimit(env, limit)


def sampling(make: Callable[[str], gym.Env[Any, Any]], env_id: str) -> float:
    """Steps a second by Gymnasium's own tool."""
    with closing(make(env_id)) as env:
        return benchmark_step(env, SECONDS, 0)


def bare_loop(make: Callable[[str], gym.Env[Any, Any]], env_id: str, actions: list[Any]) -> float:
    """Steps a second of its own thread's time, with actions drawn before, over and over until time is up."""
    with closing(make(env_id)) as env:
        env.reset(seed=0)
        steps, ends, started = 0, time.perf_counter() + SECONDS, time.thread_time()
        while time.perf_counter() < ends:
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            steps += len(actions)
        return steps / (time.thread_time() - started)


def drawn(env_id: str) -> list[Any]:
    with closing(ours(env_id)) as env:
        env.action_space.seed(0)
        return [env.action_space.sample() for _ in range(257)]


def main() -> None:
    rows = []
    for env_id, card in envweave_gym.cards().items():
        if card.gym is None or card.proxy:
            continue
        actions = drawn(env_id)
        rates = interleave(
            {
                "ours": partial(sampling, ours, env_id),
                "by hand": partial(sampling, by_hand, env_id),
                "ours, bare": partial(bare_loop, ours, env_id, actions),
                "by hand, bare": partial(bare_loop, by_hand, env_id, actions),
            },
            ROUNDS,
        )
        rows.append(
            {
                "ID": env_id,
                "gym.make": rates["ours"],
                "by hand": rates["by hand"],
                "ratio": rates["ours"] / rates["by hand"],
                "bare gym.make": rates["ours, bare"],
                "bare by hand": rates["by hand, bare"],
                "bare ratio": rates["ours, bare"] / rates["by hand, bare"],
            }
        )
    show("Steps: gym.make against the same environment by hand, steps/s", rows)


if __name__ == "__main__":
    main()
