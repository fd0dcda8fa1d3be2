"""LineRace: all runners move at once along a line, and the first at the goal wins."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from envweave_gym.core.arguments import call, check_int
from envweave_gym.core.reply_parsing import read_name
from envweave_gym.core.seeding import Seeds, chance, mix
from envweave_gym.envs.games.base import RESET_OPTIONS, Game, check_arguments
from envweave_gym.envs.toy.lineworld import ACTIONS, DIRECTIONS, check_line
from envweave_gym.episode.game_record import Infos, ParallelStep
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream

_NAME = "envweave/LineRace-v0"
MAX_RUNNERS, MAX_LENGTH = 100, 10_000  # limits of the number of runners, and of cells
_GOAL, _RUNNERS = 0, 1  # draws of an episode: that of the goal, and the first of the runners'


class LineRace(Game, ParallelEnv[str, Any, Any]):
    """Game in which several runners move at once along a line of ``length`` cells; action 0 is left, 1 right.

    The goal is at one of the ends, and the runners start in the other half; the seed decides. With
    probability ``slip`` a runner goes the other way. The first runners at the goal share a reward of 1 and
    the race is over; all others get 0. After ``max_cycles`` steps it is truncated.

    A runner observes the goal, its own position, and the positions of the runners after it in turn, each as a
    fraction of the line in (0, 1].

    There are at most :data:`MAX_RUNNERS` runners and :data:`MAX_LENGTH` cells.
    """

    metadata: dict[str, Any] = {
        "name": "line_race_v0",
        "render_modes": ["human", "ansi", "rgb_array"],
        "render_fps": 8,
        "reset_options": RESET_OPTIONS,
        "action_names": ACTIONS,
    }

    def __init__(
        self,
        runners: int = 3,
        length: int = 9,
        slip: float = 0.1,
        max_cycles: int | None = 60,
        render_mode: str | None = None,
    ) -> None:
        """Make the race; ``max_cycles=None`` means no limit of steps."""
        check_arguments(_NAME, self, max_cycles, render_mode)
        check_int(f"{_NAME}: runners", runners, "not a number of runners", 1, MAX_RUNNERS)
        check_line(length, slip, MAX_LENGTH)
        self.length, self.slip, self.max_cycles, self.render_mode = length, slip, max_cycles, render_mode
        self._slipping = chance(slip)
        self.possible_agents = [f"runner_{i}" for i in range(runners)]
        self.observation_spaces = {
            runner: Box(0.0, 1.0, (runners + 1,), np.float32) for runner in self.possible_agents
        }
        self.action_spaces = {runner: Discrete(2) for runner in self.possible_agents}
        self.agents: list[str] = []
        self._seeds = Seeds(_NAME)
        self._key = self._step = self._goal = 0
        self._positions = [0] * runners

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], Infos]:
        """Draw the goal, and put the runners at their starting positions."""
        self._key, self._step = mix(self._seeds.next(seed)), 0
        last = self.length - 1
        self._goal = last * (mix(self._key, _GOAL) % 2)
        self.agents = list(self.possible_agents)
        for i in range(len(self.agents)):
            away = last - mix(self._key, _RUNNERS + i) % ((self.length + 1) // 2)
            self._positions[i] = abs(self._goal - away)
        self.show()
        return self._observations(), {runner: {} for runner in self.agents}

    def step(self, actions: dict[str, int]) -> ParallelStep:
        """Move every runner by one cell, and pay those that reach the goal."""
        for i, runner in enumerate(self.agents):
            self._positions[i] = self._run(i, 2 * int(actions[runner]) - 1)  # actions 0 and 1 are -1 and 1
        self._step += 1
        first = self._positions.count(self._goal)
        rewards = [1.0 / first if position == self._goal else 0.0 for position in self._positions]
        late = not first and self.max_cycles is not None and self._step >= self.max_cycles
        runners = self.agents
        self.agents = [] if first or late else runners
        self.show()
        return (
            self._observations(),
            dict(zip(runners, rewards, strict=True)),
            dict.fromkeys(runners, first > 0),
            dict.fromkeys(runners, late),
            {runner: {} for runner in runners},
        )

    def parse_action(self, text: str, agent: str | None = None) -> int:
        """Return the action that a reply names, by word or by index: ``left``, ``1``, ``I go right.``"""
        return read_name(text, DIRECTIONS)

    def _run(self, i: int, move: int) -> int:
        if mix(mix(self._key, _RUNNERS + i), 1 + self._step) < self._slipping:
            move = -move
        return min(max(self._positions[i] + move, 0), self.length - 1)

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        scale, positions = np.float32(1 / self.length), self._positions
        return {
            runner: (np.array([self._goal, *positions[i:], *positions[:i]], np.float32) + 1) * scale
            for i, runner in enumerate(self.possible_agents)
        }

    def render(self) -> Any:
        """Return a line for each runner, as text or as coloured cells."""
        if self.render_mode == "rgb_array":
            strips = np.full((len(self._positions), self.length, 3), 230, np.uint8)
            strips[:, self._goal] = (60, 160, 70)
            strips[np.arange(len(self._positions)), self._positions] = (40, 70, 180)
            return np.kron(strips, np.ones((24, 24, 1), np.uint8))
        return super().render()

    def picture(self) -> str:
        """Return a line of text for each runner."""
        return "".join(map(self._lane, self._positions))

    def _lane(self, position: int) -> str:
        cells = ["·"] * self.length
        cells[self._goal], cells[position] = "G", "@"
        return "".join(cells) + "\n"

    def episode_state(self) -> dict[str, Any]:
        """Return the positions of the runners and of the goal."""
        return {"positions": list(self._positions), "goal": self._goal, "length": self.length}


raw_env = LineRace


def env(**kwargs: Any) -> AECStream:
    """Make the race as an ``AECEnv`` with streams in its infos; no runner sees a move before all have moved."""
    return AECStream(parallel_to_aec(call(_NAME, raw_env, kwargs)), name=_NAME)


def parallel_env(**kwargs: Any) -> ParallelStream:
    """Make the race as a ``ParallelEnv`` with streams (events and open requests) in its infos."""
    return ParallelStream(call(_NAME, raw_env, kwargs), name=_NAME)
