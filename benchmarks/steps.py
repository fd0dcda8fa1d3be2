"""Steps a second of ``gym.make`` against the same class under Gymnasium's own default wrappers.

Two measures: ``benchmark_step``, Gymnasium's own tool, which samples an action for every step; and a bare
loop over actions drawn before, which hides nothing of what a wrapper costs.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
from gymnasium.utils.performance import benchmark_step
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

import envweave_gym
from benchmarks.rounds import interleave, show

ROUNDS, STEPS, SECONDS = 7, 40_000, 0.5


def by_hand(env_id: str) -> gym.Env[Any, Any]:
    """What ``gym.make`` of a class registered the usual way would build."""
    core = type(gym.make(env_id).unwrapped)
    env: gym.Env[Any, Any] = OrderEnforcing(PassiveEnvChecker(core()))
    limit = envweave_gym.cards()[env_id].max_steps
    return env if limit is None else TimeLimit(env, limit)


def bare_loop(env: gym.Env[Any, Any], actions: list[Any], steps: int) -> float:
    """Steps a second with actions drawn before."""
    env.reset(seed=0)
    count, started = len(actions), time.perf_counter()
    for i in range(steps):
        _, _, terminated, truncated, _ = env.step(actions[i % count])
        if terminated or truncated:
            env.reset()
    return steps / (time.perf_counter() - started)


def drawn(env_id: str) -> list[Any]:
    space = gym.make(env_id).action_space
    space.seed(0)
    return [space.sample() for _ in range(257)]


def main() -> None:
    rows = []
    for env_id, card in envweave_gym.cards().items():
        if card.gym is None or card.proxy:
            continue
        steps = 4_000 if "CodeFix" in env_id else STEPS
        actions = drawn(env_id)
        rates = interleave(
            {
                "ours": lambda i=env_id: benchmark_step(gym.make(i), SECONDS, 0),
                "by hand": lambda i=env_id: benchmark_step(by_hand(i), SECONDS, 0),
                "ours, bare": lambda i=env_id, a=actions, n=steps: bare_loop(gym.make(i), a, n),
                "by hand, bare": lambda i=env_id, a=actions, n=steps: bare_loop(by_hand(i), a, n),
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
