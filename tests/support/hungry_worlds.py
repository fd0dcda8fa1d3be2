"""An environment that takes too much memory, or ends its process, when it is told to."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete

EAT, END = 1, 2


class Hungry(gym.Env[Any, Any]):
    """Nothing else."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = self.action_space = Discrete(3)
        self.eaten: list[bytearray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        if action == EAT:
            self.eaten += [bytearray(1 << 20) for _ in range(4000)]
        if action == END:
            os._exit(3)
        return 0, 0.0, False, False, {}


gym.register("tests/Hungry-v0", "hungry_worlds:Hungry")
HUNGRY = "hungry_worlds:tests/Hungry-v0"
