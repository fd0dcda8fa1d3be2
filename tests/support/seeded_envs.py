"""Environments that tell which seed has reached them, as other packages register them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pettingzoo
from broken_games import Duel
from gymnasium.spaces import Discrete

SINGLE, GAME = "tests/Seeded-v0", "tests/SeededGame-v0"


class Seeded(gym.Env[Any, Any]):
    """One step an episode; the info of a reset tells its seed, or -1."""

    observation_space, action_space = Discrete(1000), Discrete(2)

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("not yet")
        super().reset(seed=seed)
        return int(self.np_random.integers(1000)), {"given": -1 if seed is None else seed}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {}


class SeededGame(Duel):
    """Its state tells the seed of the last reset, or -1."""

    given = -1

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.given = -1 if seed is None else seed
        super().reset(seed=seed, options=options)

    def episode_state(self) -> dict[str, Any]:
        return {"given": self.given}


def register() -> None:
    """Register them with Gymnasium and PettingZoo."""
    if SINGLE not in gym.registry:
        gym.register(SINGLE, "seeded_envs:Seeded")
    if GAME not in pettingzoo.aec_registry:
        pettingzoo.register("aec", GAME, "seeded_envs:SeededGame")


register()
