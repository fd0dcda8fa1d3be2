"""Environments for tests of Ray actors, which the actors import too."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from envweave_gym.testing.traces import same

NAP, DIE = 1, 2
"""The actions that take long, and that end the process."""
LONG_NAP = 0.8
LENGTH = 50
"""So many steps an episode has."""
DEADLINES: dict[str, Any] = {"call_deadline": 20.0, "reset_deadline": 20.0}
_RESULTS = ("observations", "rewards", "terminated", "truncated")


def expect_same(here: Any, there: Any) -> None:
    """The same results of a step, whose infos are another matter."""
    for name, mine, theirs in zip(_RESULTS, here, there, strict=False):
        assert same(mine, theirs), f"{name}: {mine!r} here, {theirs!r} there"


class Napper(gym.Env[Any, Any]):
    """Counts its steps; some take long, and one ends its process."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = Box(0, 1e9, (2,), np.float64), Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if action == NAP:
            time.sleep(LONG_NAP)
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        self.taken += 1
        return self._seen(), float(self.taken), self.taken >= LENGTH, False, {}

    def _seen(self) -> Any:
        return np.array([self.taken, os.getpid()], np.float64)


class Painter(gym.Env[Any, Any]):
    """Shows large pictures, another at every step."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, render_mode: str | None = None, side: int = 512) -> None:
        self.render_mode = render_mode
        self.observation_space, self.action_space = Box(0, 255, (side, side), np.uint8), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), 1.0, False, False, {}

    def _seen(self) -> Any:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


for name in ("Napper", "Painter"):
    gym.register(f"tests/{name}-v0", f"ray_worlds:{name}")
NAPPER, PAINTER = "ray_worlds:tests/Napper-v0", "ray_worlds:tests/Painter-v0"
