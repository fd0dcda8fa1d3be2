"""Environments that belong to the thread that made them, as those that draw with OpenGL do."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium as gym
import numpy as np
from broken_games import Duel
from gymnasium.spaces import Discrete


class Bound(gym.Env[Any, Any]):
    """Draws a white picture in its own thread, and a black one in any other; closes in its own alone."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}
    observation_space, action_space = Discrete(2), Discrete(2)
    closed_in: list[bool] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.thread = render_mode, threading.get_ident()

    def is_at_home(self) -> bool:
        return threading.get_ident() == self.thread

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return int(self.is_at_home()), {}

    def step(self, action: Any) -> Any:
        if action == 1:
            raise RuntimeError("I do not like this action")
        return int(self.is_at_home()), 1.0, False, False, {}

    def render(self) -> Any:
        return np.full((2, 2, 3), 255 * self.is_at_home(), np.uint8)

    def close(self) -> None:
        self.closed_in.append(self.is_at_home())


class BoundGame(Duel):
    """Refuses to be played in another thread."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.thread = threading.get_ident()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        assert threading.get_ident() == self.thread
        super().reset(seed, options)

    def step(self, action: Any) -> None:
        assert threading.get_ident() == self.thread
        super().step(action)
