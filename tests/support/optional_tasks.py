"""An environment whose resets take an option, which servers import too."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class Tasks(gym.Env[int, int]):
    """Observes which task was asked for."""

    metadata: dict[str, Any] = {"render_modes": [], "reset_options": ("index",)}
    observation_space = action_space = gym.spaces.Discrete(10)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return (options or {}).get("index", 0), {}

    def step(self, action: int) -> Any:
        return action, 0.0, True, False, {}


class Silent(Tasks):
    """Names none of its options."""

    metadata: dict[str, Any] = {"render_modes": []}
