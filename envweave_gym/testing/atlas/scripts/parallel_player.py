"""Plays a parallel PettingZoo environment in scripts of the atlas."""

from __future__ import annotations

import copy
from typing import Any

from envweave_gym.testing.atlas.scripts.games import sampled
from envweave_gym.testing.atlas.scripts.shared import after

API = "parallel"


def play(env: Any, seed: Any, moves: int, keep: Any = copy.deepcopy, before_each: Any = None) -> list[Any]:
    """Return a copy of what reset and each round returned; a finished episode is followed by another seed's."""
    spaces: dict[str, Any] = {}
    last = env.reset(seed=seed)
    trace = [keep(last)]
    for _ in range(moves):
        if before_each is not None:
            before_each(env)
        if env.agents:
            seen, infos = last[0], last[-1]
            last = env.step(
                {one: sampled(spaces, env, one, seen.get(one), infos.get(one, {})) for one in env.agents}
            )
        else:
            last = env.reset(seed=after(seed, trace))
        trace.append(keep(last))
    return trace


def checker(env: Any) -> None:
    """Run PettingZoo's own test."""
    from pettingzoo.test import parallel_api_test

    parallel_api_test(env, num_cycles=50)
