"""Counter: the smallest example of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from envweave_gym.core.faults import shown
from envweave_gym.core.seeding import HashedRandomness


class CounterEnv(HashedRandomness[Any, Any]):
    """Environment that adds ``action["delta"]`` to a counter, which starts at 0, until it reaches ``target``.

    Reaching the target earns 1.0 and ends the episode; every other step earns 0.0.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4, "ignores_seed": True, "reset_options": ()}

    def __init__(self, target: int = 10, render_mode: str | None = None) -> None:
        if type(target) is not int or target == 0 or abs(target) > 1_000_000:
            given = f"target={shown(target)}"
            raise ValueError(f"{given} is not a count; give an int between -1000000 and 1000000, but not 0")
        self.target, self.render_mode = target, render_mode
        self.action_space = Dict({"delta": Discrete(21, start=-10)})
        bound = np.iinfo(np.int64).max
        self.observation_space = Dict({"count": Box(-bound, bound, (), np.int64)})
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.int64]], dict[str, Any]]:
        """Set the counter to 0."""
        self.seed_late(seed)
        self.count = 0
        return self._observation(), {}

    def step(
        self, action: dict[str, int]
    ) -> tuple[dict[str, NDArray[np.int64]], float, bool, bool, dict[str, Any]]:
        """Add ``action["delta"]`` to the counter."""
        self.count += int(action["delta"])
        reached = self.count == self.target
        return self._observation(), float(reached), reached, False, {}

    def _observation(self) -> dict[str, NDArray[np.int64]]:
        return {"count": np.array(self.count, np.int64)}

    def render(self) -> Any:
        """Return the count and the target as text."""
        return f"{self.count} of {self.target}" if self.render_mode == "ansi" else None

    def episode_state(self) -> dict[str, Any]:
        """Return the count and the target."""
        return {"count": self.count, "target": self.target}
