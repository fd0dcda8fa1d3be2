"""Environments that do what a script says, for tests of streams and faults; other processes import them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete

from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.stream import Event


class Scripted(Emitter, gym.Env[int, int]):
    """Observes how many steps it took; what happens in a step or a reset is read off a list.

    An item of ``steps`` is a reward, an exception to raise, ``"end"``, an ``Event`` to tell (reward 0), or a
    dict to return as the info. An item of ``resets`` is ``None`` or an exception. Lists are read on from one
    episode to the next; after them, steps earn 0 and resets succeed.
    """

    metadata = {"render_modes": []}

    def __init__(self, steps: Sequence[Any] = (), resets: Sequence[Any] = ()) -> None:
        self.observation_space, self.action_space = Discrete(1000), Discrete(3)
        self.steps, self.resets, self.taken, self.seeds = list(steps), list(resets), 0, []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.taken = 0
        item = self.resets.pop(0) if self.resets else None
        if isinstance(item, BaseException):
            raise item
        return self.taken, {"options": len(options or {})}

    def step(self, action: int) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        self.taken += 1
        item = self.steps.pop(0) if self.steps else 0.0
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Event):
            self.emit(item)
        info = item if isinstance(item, dict) else {"taken": self.taken}
        reward = 0.0 if isinstance(item, Event | dict) or item == "end" else item
        return self.taken, reward, item == "end" if isinstance(item, str) else False, False, info

    def episode_state(self) -> dict[str, Any]:
        return {"taken": self.taken}


class Reused(Scripted):
    """Returns one and the same info dict from every call."""

    def __init__(self) -> None:
        super().__init__()
        self.info: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        observation, _ = super().reset(**kwargs)
        self.info["taken"] = 0
        return observation, self.info

    def step(self, action: int) -> tuple[int, Any, bool, bool, dict[str, Any]]:
        observation, *rest, _ = super().step(action)
        self.info["taken"] = observation
        return observation, *rest, self.info
