"""Environments for tests of remote vectors, which servers import too."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from envweave_gym import InvalidAction, Unicode


class Talkative(gym.Env[Any, Any]):
    """Says of itself what infos can hold, and not in every row nor at every step; nested spaces."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Tuple(
            (Dict({"word": Unicode(20), "at": Box(0, 100, (), np.float32)}), Box(0, 9, (2, 2), np.int16))
        )
        self.action_space = Tuple((Discrete(3, start=-1), Box(-1, 1, (2,), np.float32)))
        self.taken = self.odd = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken, self.odd = 0, (seed or 0) % 2
        return self._seen(), {"began": True, "options": len(options or {})}

    def step(self, action: Any) -> Any:
        self.taken += 1
        choice, push = action
        info: dict[str, Any] = {"taken": self.taken, "push": push * 2}
        if self.odd:
            info |= {"word": "odd", "inner": {"choice": int(choice), "text": "ä"}, "none": None}
        if self.taken == 2:
            info["half"] = np.float32(0.5)
        over = choice == 1
        return self._seen(), float(push.sum()), bool(over), False, info

    def _seen(self) -> Any:
        cells = np.full((2, 2), self.taken % 10, np.int16)
        return {"word": "w" * (self.taken % 20), "at": np.array(self.taken, np.float32)}, cells

    def render(self) -> Any:
        return f"{self.taken} taken"


class Choosy(gym.Env[int, int]):
    """Refuses some actions and options itself, and says no."""

    observation_space, action_space = Discrete(1000), Discrete(3)

    def __init__(self) -> None:
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return 0, {}

    def step(self, action: int) -> Any:
        if action == 2:
            raise InvalidAction("tests/Choosy-v0: not that one")
        self.taken += 1
        return self.taken, 0.0, False, False, {}


class Mortal(gym.Env[int, int]):
    """Ends its process when it is told to; draws how often it was not."""

    observation_space, action_space = Discrete(1), Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.taken = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return 0, {}

    def step(self, action: int) -> Any:
        if action:
            os._exit(1)
        self.taken += 1
        return 0, 0.0, False, False, {}

    def render(self) -> Any:
        return np.full((1, 1, 3), self.taken, np.uint8)


gym.register("tests/Talkative-v0", entry_point="remote_rows:Talkative")
gym.register("tests/Choosy-v0", entry_point="remote_rows:Choosy")
gym.register("tests/Mortal-v0", entry_point="remote_rows:Mortal")
TALKATIVE, CHOOSY, MORTAL = (f"remote_rows:tests/{name}-v0" for name in ("Talkative", "Choosy", "Mortal"))
