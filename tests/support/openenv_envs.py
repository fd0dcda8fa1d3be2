"""An environment with faults of its own, for the tests of OpenEnv's protocol and of MCP."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete

from envweave_gym.core.faults import Fault, FaultKind


class Faulty(gym.Env[Any, Any]):
    """Truncates with a fault if the action is 0, as an environment does whose judge cannot be reached."""

    observation_space = action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        if action:
            return 1, 1.0, False, False, {}
        fault = Fault(FaultKind.LOST, "the judge is away", retryable=True)
        return 1, 1.0, False, True, {"fault": fault}


gym.register("faulty/Judged-v0", Faulty)
