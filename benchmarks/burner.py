"""An environment whose step takes a millisecond of a core."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

WORK = 1e-3
ID = "benchmarks.burner:bench/Burner-v0"
gym.register("bench/Burner-v0", "benchmarks.burner:Burner")


class Burner(gym.Env[Any, Any]):
    """An environment without end, whose steps compute for :data:`WORK` seconds of CPU time."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 1, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        burn(WORK)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
