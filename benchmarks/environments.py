"""Environments whose steps take time: a millisecond of a core, or a second of sleep."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

WORK_S = 1e-3
BURNER = "benchmarks.environments:bench/Burner-v0"
gym.register("bench/Burner-v0", "benchmarks.environments:Burner")


class Burner(gym.Env[Any, Any]):
    """An environment without end, whose steps compute for :data:`WORK_S` seconds of CPU time."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 1, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        burn(WORK_S)
        return np.zeros(8, np.float32), 0.0, False, False, {}


def burn(seconds: float) -> None:
    """Compute for some time of a core, whatever else the machine does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Sleeper(gym.Env[int, int]):
    """Sleeps a second in every step."""

    metadata = {"render_modes": []}
    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        time.sleep(1.0)
        return 0, 0.0, False, False, {}
