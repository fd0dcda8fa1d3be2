"""An environment that pays more than a number, as other packages have them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

OBJECTIVES = "tests/Objectives-v0"


class Objectives(gym.Env[Any, Any]):
    """Pays for two objectives at once, as environments of several objectives or agents do."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, kind: str = "list", reward: str = "") -> None:
        self.kind, self.reward = kind, reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {"reward": self.reward}

    def step(self, action: Any) -> Any:
        paid = {"list": [1, 2.5], "array": np.array([1, 2.5]), "dict": {"a": 1, "b": 2.5}, "number": 3}
        return 0, paid[self.kind], False, False, {}


def register() -> None:
    """Register it with Gymnasium."""
    if OBJECTIVES not in gym.registry:
        gym.register(OBJECTIVES, "paying_envs:Objectives", disable_env_checker=True)


register()
