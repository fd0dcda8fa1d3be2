"""``start_methods.py METHOD {"ID": {kwargs}, …}``: vectors in workers play as one in process.

The main module imports no more than Gymnasium: a worker finds its way to an ID from the spec alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, VectorEnv


def trace(env: VectorEnv[Any, Any, Any]) -> list[Any]:
    env.action_space.seed(1)
    rows: list[Any] = [env.reset(seed=3)[0]]
    rows += [env.step(env.action_space.sample())[:4] for _ in range(5)]
    env.close()
    return rows


def in_workers(
    method: str, env_id: str, rows: int, kwargs: dict[str, Any]
) -> dict[str, Callable[[], VectorEnv[Any, Any, Any]]]:
    context = {"context": method}
    prefixed = f"envweave_gym:{env_id}"
    return {
        "make_vec": partial(
            gym.make_vec, env_id, num_envs=rows, vectorization_mode="async", vector_kwargs=context, **kwargs
        ),
        "prefix": lambda: AsyncVectorEnv([lambda: gym.make(prefixed, **kwargs)] * rows, **context),
        "spec": lambda: AsyncVectorEnv([partial(gym.spec(env_id).make, **kwargs)] * rows, **context),
    }


def main(method: str, trial: dict[str, dict[str, Any]]) -> None:
    import envweave_gym

    first = next(iter(trial))
    for env_id, kwargs in trial.items():
        rows = 2 if env_id == first else 1  # each is a process that imports everything
        expected = trace(gym.make_vec(env_id, num_envs=rows, **kwargs))
        forms = in_workers(method, env_id, rows, kwargs)
        if env_id != first:
            forms = {"make_vec": forms["make_vec"]}
        for form, make in forms.items():
            assert data_equivalence(trace(make()), expected), (env_id, form)
            print(env_id, form)
    ours = envweave_gym.make(
        first, num_envs=2, vectorization_mode="async", vector_kwargs={"context": method}, **trial[first]
    )
    assert data_equivalence(trace(ours), trace(gym.make_vec(first, num_envs=2, **trial[first])))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
