"""Environments and games with nothing of this package around them, for the tests of its protocols."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.spaces import Discrete, Space
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector

from envweave_gym.core.spaces import Unicode


class Steps(gym.Env[Any, Any]):
    """Observes nothing and takes actions of any space."""

    def __init__(self, action_space: Space[Any]) -> None:
        self.action_space, self.observation_space = action_space, Discrete(1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, 0.0, False, False, {}

    def episode_state(self) -> dict[str, Any]:
        return {"own": "field"}


class Compass(Steps):
    """Reads replies itself."""

    words = ("north", "south")

    def __init__(self) -> None:
        super().__init__(Discrete(2))

    def parse_action(self, text: str, agent: str | None = None) -> int:
        return self.words.index(text)


class Duel(ParallelEnv[str, Any, Any]):
    """Two agents with action spaces of their own, both at once."""

    metadata = {"name": "duel", "is_parallelizable": True}
    render_mode = None
    possible_agents = ["number_0", "word_1"]

    def __init__(self) -> None:
        self.spaces: dict[str, Space[Any]] = {"number_0": Discrete(3), "word_1": Unicode(9)}

    def observation_space(self, agent: str) -> Space[Any]:
        return Discrete(1)

    def action_space(self, agent: str) -> Space[Any]:
        return self.spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        agents = self.agents
        everyone = [dict.fromkeys(agents, nothing) for nothing in (0, 0.0, False, False)]
        return *everyone, {agent: {} for agent in agents}

    def episode_state(self) -> dict[str, Any]:
        return {"own": "field"}


class Turns(AECEnv[str, Any, Any]):
    """Two agents in turns, with a parser that wants to know whose reply it reads."""

    metadata = {"name": "turns", "is_parallelizable": True}
    render_mode = None
    possible_agents = ["a_0", "b_1"]

    def observation_space(self, agent: str) -> Space[Any]:
        return Discrete(1)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(2)

    def parse_action(self, text: str, agent: str | None = None) -> int:
        return {"a_0": 0, "b_1": 1}[agent or ""] if text == "me" else int(text)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.turn = AgentSelector(self.agents)
        self.agent_selection = self.turn.next()

    def observe(self, agent: str) -> int:
        return 0

    def step(self, action: Any) -> None:
        self.agent_selection = self.turn.next()


def wrapped(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(env), 9))
