"""LineWorld: walk along a line to the goal, as a single environment and as an equal NumPy-native vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envweave_gym.core.faults import shown
from envweave_gym.core.reply_parsing import read_name
from envweave_gym.core.seeding import GOLDEN, HashedRandomness, chance, constant, mix, mix_many
from envweave_gym.vector.native import NativeVectorEnv

ACTIONS = ("left", "right")
DIRECTIONS = {"left": 0, "right": 1, "0": 0, "1": 1}
"""Actions by their words in a reply."""

GOAL_REWARD, STEP_REWARD = 1.0, -0.01
MAX_LENGTH = 1_000_000
_NOISE = 1  # the index of an episode's first slip draw; draw 0 sets walker and goal
_FIRST, _ONE, _HALF = np.array(0), np.array(1), constant(32)


class LineWorldEnv(HashedRandomness[Any, np.int64 | int]):
    """Environment with a walker and a goal on a line of ``length`` cells; action 0 moves left, 1 right.

    With probability ``slip`` a step goes the other way. The observation is the position of the walker and of
    the goal, each in [0, 1]. Reaching the goal earns 1.0 and ends the episode; every other step costs 0.01.
    """

    metadata = {
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 8,
        "reset_options": (),
        "action_names": ACTIONS,
    }

    def __init__(self, length: int = 11, slip: float = 0.1, render_mode: str | None = None) -> None:
        check_line(length, slip)
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
        # One draw gives the walker's cell, and the distance to the goal.
        draw = mix(self._key) >> 32
        self._place = draw % self.length
        self._goal = (self._place + 1 + draw // self.length % (self.length - 1)) % self.length
        return self._observation(), {}

    def step(self, action: np.int64 | int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move the walker by one cell."""
        move = 2 * int(action) - 1
        # A hash of key and step, not a generator: the vector form draws the same number for this row.
        if mix(self._key, _NOISE + self._step) < self._slipping:
            move = -move
        self._step += 1
        self._place = min(max(self._place + move, 0), self.length - 1)
        there = self._place == self._goal
        return self._observation(), GOAL_REWARD if there else STEP_REWARD, there, False, {}

    def _observation(self) -> NDArray[np.float32]:
        last = self.length - 1
        return np.array((self._place / last, self._goal / last), np.float32)

    def render(self) -> Any:
        """Return the line as text, or as a strip of coloured cells."""
        if self.render_mode == "ansi":
            cells = ["·"] * self.length
            cells[self._goal], cells[self._place] = "G", "@"
            return "".join(cells)
        if self.render_mode == "rgb_array":
            strip = np.full((1, self.length, 3), 230, np.uint8)
            strip[0, self._goal], strip[0, self._place] = (60, 160, 70), (40, 70, 180)
            return np.kron(strip, np.ones((24, 24, 1), np.uint8))
        return None

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action that a reply names, by word or by index: ``left``, ``1``, ``I go right.``"""
        return read_name(text, DIRECTIONS)

    def episode_state(self) -> dict[str, Any]:
        """Return the positions of walker and goal, and the length of the line."""
        return {"place": self._place, "goal": self._goal, "length": self.length}


class LineWorldVectorEnv(NativeVectorEnv):
    """Vector environment of LineWorlds in NumPy; each row equals a :class:`LineWorldEnv` with the same seed."""

    metadata: dict[str, Any] = {"render_modes": [], "reset_options": ()}

    def __init__(
        self,
        num_envs: int = 1,
        length: int = 11,
        slip: float = 0.1,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
    ) -> None:
        check_line(length, slip)
        super().__init__(
            Box(0.0, 1.0, (2,), np.float32),
            Discrete(2),
            num_envs=num_envs,
            autoreset_mode=autoreset_mode,
            max_steps=max_steps,
        )
        self.length, self.slip = length, slip
        self._slipping = constant(chance(slip))
        self._last, self._cells = np.array(length - 1), _cells(length)
        self._noise = np.zeros(num_envs, np.uint64)
        self._places = np.zeros(num_envs, np.int64)
        self._goals = np.zeros(num_envs, np.int64)
        self._seen = np.zeros((num_envs, 2), np.float32)
        self._costs = np.full(num_envs, STEP_REWARD)

    def begin(self, rows: NDArray[np.intp], seeds: NDArray[np.uint64], options: dict[str, Any]) -> None:
        """Put the walkers and goals of ``rows`` on different cells."""
        draws = (mix_many(seeds) >> _HALF).view(np.int64)
        # The same draws as in LineWorldEnv.reset.
        others, places = np.divmod(draws, self._last + _ONE)
        goals = (places + _ONE + others % self._last) % (self._last + _ONE)
        self._noise[rows], self._places[rows], self._goals[rows] = seeds + GOLDEN, places, goals
        self._seen[rows, 1] = self._cells[goals]

    def advance(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Move the walker of every row by one cell."""
        if self.slip:
            # A slip swaps 0 and 1.
            actions = actions ^ (mix_many(self._noise) < self._slipping)
            self._noise += GOLDEN
        # 2 * actions - 1, added in place without temporary arrays.
        places = self._places
        places += actions
        places += actions
        places -= _ONE
        np.maximum(places, _FIRST, out=places)  # walls
        np.minimum(places, self._last, out=places)
        there = places == self._goals
        rewards = self._costs.copy()
        rewards[there] = GOAL_REWARD
        return rewards, there

    def observe(self) -> NDArray[np.float32]:
        """Return the positions of walkers and goals."""
        self._seen[:, 0] = self._cells[self._places]
        # A copy, because an observation must not change with the next step.
        return self._seen.copy()

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action of one row that a reply names, as in :class:`LineWorldEnv`."""
        return read_name(text, DIRECTIONS)

    def row_state(self, row: int) -> dict[str, Any]:
        """Return the positions of walker and goal in a row, and the length of the line."""
        return {"place": int(self._places[row]), "goal": int(self._goals[row]), "length": self.length}


def _cells(length: int) -> NDArray[np.float32]:
    """Return the observed position of each cell, from 0 to 1."""
    return (np.arange(length) / (length - 1)).astype(np.float32)


def check_line(length: Any, slip: Any, longest: int = MAX_LENGTH) -> None:
    """Raise ``ValueError`` unless ``length`` is an int from 2 to ``longest`` and ``slip`` a probability below 1."""
    if type(length) is not int or not 2 <= length <= longest:
        raise ValueError(f"length={shown(length)} is not a line; give an int from 2 to {longest}")
    if isinstance(slip, bool) or not isinstance(slip, int | float) or not 0 <= slip < 1:
        raise ValueError(f"slip={shown(slip)} is not a probability; give a number in [0, 1)")
