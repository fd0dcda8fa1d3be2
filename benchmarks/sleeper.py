"""An environment whose step takes a second and no work: what a server does while its environments wait."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym


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
