"""Environments over a few numbered tasks, for tests of groups and epochs; servers import them too."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box, Discrete
from numpy import array, float64, int64

from envweave_gym import InvalidArgument
from envweave_gym.core.seeding import HashedRandomness, mix

TASKS = 7


class Numbered(HashedRandomness[Any, int]):
    """Shows which of seven tasks it plays and a draw of the episode, until action 1 ends it."""

    metadata: dict[str, Any] = {"render_modes": [], "reset_options": ("index", "word")}
    observation_space, action_space = Box(0, 1e6, (2,), float64), Discrete(2)

    def __init__(self) -> None:
        self.index = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        key, given = self.episode_key(seed), options or {}
        self.index = given.get("index", mix(key) % TASKS)
        if not 0 <= self.index < TASKS:
            raise InvalidArgument(f"tests/Numbered-v0: there is no task {self.index}")
        self._seen = array([self.index, mix(key, 1) % 1_000_000], float64)
        return self._seen.copy(), {"index": int64(self.index), "word": given.get("word", "")}

    def step(self, action: int) -> Any:
        return self._seen.copy(), 0.0, bool(action), False, {"index": int64(self.index)}

    def episode_state(self) -> dict[str, Any]:
        return {"tasks": TASKS, "index": self.index}


class Stumbler(Numbered):
    """The same in episodes of three steps that pay 1 each; action 1 raises."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.taken = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        if action:
            raise OSError("stumbled")
        self.taken += 1
        return self._seen.copy(), 1.0, self.taken == 3, False, {"index": int64(self.index)}


gym.register("tests/Numbered-v0", entry_point="task_worlds:Numbered")
gym.register("tests/Stumbler-v0", entry_point="task_worlds:Stumbler")
NUMBERED, STUMBLER = (f"task_worlds:tests/{name}-v0" for name in ("Numbered", "Stumbler"))
