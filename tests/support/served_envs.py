"""Environments for the tests of the server; a server takes them as ``served_envs:served/Nap-v0``."""

from __future__ import annotations

import os
import time
from asyncio import CancelledError
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Sequence

from envweave_gym import Unicode


class Nap(gym.Env[Any, Any]):
    """Sleeps for as long as it is told, or until there is a file ``$WAKE``; observes how often."""

    metadata = {"render_modes": []}

    def __init__(self, longest: float = 60.0):
        self.observation_space = Discrete(1000)
        self.action_space = Box(0, longest, (), np.float64)
        self.naps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.naps = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        end, wake = time.monotonic() + float(action), os.environ.get("WAKE", "")
        while (left := end - time.monotonic()) > 0 and not os.path.exists(wake):
            time.sleep(min(left, 0.01) if wake else left)
        self.naps += 1
        return self.naps, 1.0, False, False, {}


class Awkward(Nap):
    """Raises, or leaves, or breaks when it is closed, as it is told."""

    def __init__(self, when: str = "step"):
        super().__init__()
        self.when = when
        self.action_space = Discrete(2)
        if when == "made":
            raise RuntimeError("made badly")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.when == "reset":
            raise RuntimeError("reset badly")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action and self.when == "step":
            raise RuntimeError("stepped badly")
        if action and self.when == "exit":
            os._exit(9)
        return super().step(0)

    def close(self) -> None:
        if self.when == "close":
            raise RuntimeError("closed badly")


class Panic(BaseException):
    """What an extension module raises that no ``except Exception`` is to catch."""


class Raising(Nap):
    """Raises what ends a thread, wherever it is told to, at the first action or question that is not 0."""

    metadata = {"render_modes": ["ansi"], "reset_options": ("raise",)}

    def __init__(self, what: str = "KeyboardInterrupt", where: str = "step", render_mode: str | None = None):
        super().__init__()
        kinds = {kind.__name__: kind for kind in (KeyboardInterrupt, GeneratorExit, CancelledError, Panic)}
        self.what, self.where, self.render_mode = kinds[what], where, render_mode
        self.action_space = Discrete(2)
        self._raise_in("made")

    def _raise_in(self, where: str) -> None:
        if where == self.where:
            raise self.what("badly")

    @property
    def observation_space(self) -> Any:
        self._raise_in("described")
        return Discrete(1000)

    @observation_space.setter
    def observation_space(self, space: Any) -> None:
        pass

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options:
            self._raise_in("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if action:
            self._raise_in("step")
        return super().step(0)

    def render(self) -> Any:
        self._raise_in("render")
        return "drawn"

    def close(self) -> None:
        self._raise_in("close")


class Shapes(Nap):
    """Has spaces of many kinds, and observes what was done."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = Dict(
            image=Box(0, 255, (2, 3), np.uint8),
            move=Box(-1, 1, (2,), np.float32),
            words=Sequence(Unicode(5)),
            items=Sequence(Discrete(9)),
        )
        self.observation_space = self.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        return self.action_space.sample(), {"matrix": np.eye(2), "bytes": b"\0\1"}

    def step(self, action: Any) -> Any:
        return action, float(np.sum(action["move"])), False, False, {}


class Coin(gym.Env[int, int]):
    """Guess the side of a coin."""

    def __init__(self, sides: int = 2):
        self.observation_space = self.action_space = Discrete(sides)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> Any:
        return action, 1.0, True, False, {}


for _kind in (Nap, Awkward, Raising, Shapes):
    _id = f"served/{_kind.__name__}-v0"
    if _id not in gym.registry:
        gym.register(_id, _kind, disable_env_checker=True, order_enforce=False)
