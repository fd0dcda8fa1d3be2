"""LineWorld: walk along a line to the goal. A single form, and a NumPy-native vector form that equals it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envweave_gym.seeding import HashedRandomness, chance, mix, mix_many
from envweave_gym.vector import NativeVectorEnv

GOAL_REWARD, STEP_REWARD = 1.0, -0.01
_NOISE = 1


class LineWorldEnv(HashedRandomness, gym.Env[NDArray[np.float32], int]):
    """A walker and a goal stand on a line of ``length`` cells; action 0 walks left, 1 right.

    With probability ``slip`` a step goes the other way. The observation is the place of the walker and of the
    goal, each in [0, 1]. Reaching the goal earns 1.0 and ends the episode; every other step costs 0.01.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}

    def __init__(self, length: int = 11, slip: float = 0.1, render_mode: str | None = None) -> None:
        _check(length, slip)
        self.length, self.slip, self.render_mode = length, slip, render_mode
        self._slipping = chance(slip)
        self.observation_space = Box(0.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._key = self._step = self._place = self._goal = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Put walker and goal on different cells."""
        self._key = self.episode_key(seed)
        self._step = 0
        draw = mix(self._key) >> 32
        self._place = draw % self.length
        self._goal = (self._place + 1 + draw // self.length % (self.length - 1)) % self.length
        return self._observation(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Walk one cell."""
        move = 2 * int(action) - 1
        if mix(self._key, _NOISE + self._step) < self._slipping:
            move = -move
        self._step += 1
        self._place = min(max(self._place + move, 0), self.length - 1)
        there = self._place == self._goal
        return self._observation(), GOAL_REWARD if there else STEP_REWARD, there, False, {}

    def _observation(self) -> NDArray[np.float32]:
        scale = 1.0 / (self.length - 1)
        return np.array((self._place * scale, self._goal * scale), np.float32)

    def render(self) -> Any:
        """The line as text, or as a strip of coloured cells."""
        if self.render_mode == "ansi":
            cells = ["·"] * self.length
            cells[self._goal], cells[self._place] = "G", "@"
            return "".join(cells)
        if self.render_mode == "rgb_array":
            strip = np.full((1, self.length, 3), 230, np.uint8)
            strip[0, self._goal], strip[0, self._place] = (60, 160, 70), (40, 70, 180)
            return np.kron(strip, np.ones((24, 24, 1), np.uint8))
        return None

    def episode_state(self) -> dict[str, Any]:
        """Where walker and goal are."""
        return {"place": self._place, "goal": self._goal, "length": self.length}


class LineWorldVectorEnv(NativeVectorEnv):
    """Many LineWorlds as arrays; row for row the same as :class:`LineWorldEnv` with the same seed."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        num_envs: int = 1,
        length: int = 11,
        slip: float = 0.1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
    ) -> None:
        _check(length, slip)
        super().__init__(
            Box(0.0, 1.0, (2,), np.float32),
            Discrete(2),
            num_envs=num_envs,
            autoreset_mode=autoreset_mode,
            max_steps=max_steps,
        )
        self.length, self.slip = length, slip
        self._slipping = np.uint64(chance(slip))
        self._keys = np.zeros(num_envs, np.uint64)
        self._places = np.zeros(num_envs, np.int64)
        self._goals = np.zeros(num_envs, np.int64)
        self._seen = np.zeros((num_envs, 2), np.float32)

    def begin(self, rows: NDArray[np.intp], seeds: NDArray[np.uint64]) -> None:
        """Put walkers and goals on different cells."""
        draws = (mix_many(seeds) >> np.uint64(32)).view(np.int64)
        places = draws % self.length
        goals = (places + 1 + draws // self.length % (self.length - 1)) % self.length
        self._keys[rows], self._places[rows], self._goals[rows] = seeds, places, goals
        self._seen[rows, 1] = goals * (1.0 / (self.length - 1))

    def advance(
        self, actions: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Walk one cell in every row."""
        if self.slip:
            actions = actions ^ (mix_many(self._keys, steps + _NOISE) < self._slipping)
        places = self._places
        places += actions
        places += actions
        places -= 1
        np.maximum(places, 0, out=places)
        np.minimum(places, self.length - 1, out=places)
        there = places == self._goals
        return np.where(there, GOAL_REWARD, STEP_REWARD), there

    def observe(self) -> NDArray[np.float32]:
        """The places of walkers and goals."""
        np.multiply(self._places, 1.0 / (self.length - 1), out=self._seen[:, 0], casting="unsafe")
        return self._seen.copy()


def _check(length: int, slip: float) -> None:
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise ValueError(f"length={length!r} is not a line; give an int >= 2")
    if isinstance(slip, bool) or not isinstance(slip, int | float) or not 0 <= slip < 1:
        raise ValueError(f"slip={slip!r} is not a probability; give a number in [0, 1)")
