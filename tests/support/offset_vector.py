"""A native vector environment whose choices start below zero and whose episodes open with messages."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from envweave_gym import Event, InvalidArgument, message
from envweave_gym.vector.native import NativeVectorEnv


class Offset(NativeVectorEnv):
    """Choices count from -10, everything pays its choice, ``steps`` are observed, and openings are told."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        spaces = Box(-100, 100, (), np.int64), Discrete(21, start=-10)
        super().__init__(*spaces, num_envs=num_envs, **kwargs)
        self.seen = np.zeros(num_envs, np.int64)

    def begin(self, rows: Any, seeds: Any, options: dict[str, Any]) -> None:
        if options.keys() - {"seen"}:
            raise InvalidArgument(f"{sorted(options)} are unknown; there is 'seen'")
        self.seen[rows] = options.get("seen", 0)

    def advance(self, actions: Any) -> Any:
        self.seen += 1
        return (actions - 10).astype(float), actions == 20

    def observe(self) -> Any:
        return self.seen.copy()

    opening_events = 2

    def opening(self, seed: int) -> tuple[Event, ...]:
        return message("system", "add"), message("user", str(seed))
