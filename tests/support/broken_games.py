"""Games that keep every rule of the conformance kit, and ones that break a single rule each."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import EzPickle
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.seeding import Seeds
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind, Stream
from envweave_gym.wrappers import AECStream


class Duel(AECEnv[str, Any, Any], Emitter):
    """A good game: a secret number for each of two, who say in turn, twice, whether theirs is the higher."""

    metadata = {"name": "duel_v0", "render_modes": ["ansi"], "is_parallelizable": False}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode
        self.possible_agents = ["player_0", "player_1"]
        self.agents = []
        self.spaces = {agent: Box(0, 10, (2,), np.float32) for agent in self.possible_agents}
        self.choices = {agent: Discrete(2) for agent in self.possible_agents}
        self._seeds = Seeds("Duel")

    def observation_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.choices[agent]

    def draw(self, seed: int | None) -> Any:
        return np.random.default_rng(self._seeds.next(seed)).integers(1, 10, 2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.secrets = self.draw(seed)
        self.agents, self.said = list(self.possible_agents), []
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        for agent, secret in zip(self.agents, self.secrets.tolist(), strict=True):
            self.emit(Event(UNNUMBERED, EventKind.REVEAL, None, (agent,), {"secret": secret}))

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        mine = self.possible_agents.index(agent)
        self.said.append(int(action))
        self.rewards[agent] = float(action == (self.secrets[mine] > self.secrets[1 - mine]))
        self.terminations = dict.fromkeys(self.agents, len(self.said) == 4)
        self.agent_selection = self.possible_agents[1 - mine]
        self._accumulate_rewards()

    def observe(self, agent: str) -> Any:
        return np.array([self.secrets[self.possible_agents.index(agent)], len(self.said)], np.float32)

    def render(self) -> Any:
        return str(self.said) if self.render_mode == "ansi" else None

    def close(self) -> None:
        pass


class Compass(Duel):
    """A good one, whose agents are not numbered and see one number each, in boxes that are not alike."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.possible_agents = ["north", "south"]
        self.spaces = {"north": Box(0, np.inf, (), np.float32), "south": Box(0, 10, (1,), np.float32)}
        self.choices = {agent: Discrete(2) for agent in self.possible_agents}

    def observe(self, agent: str) -> Any:
        return super().observe(agent)[:1].reshape(self.spaces[agent].shape)


class NewSpaces(Duel):
    def observation_space(self, agent: str) -> Any:
        return Box(0, 10, (2,), np.float32)


DRAWN = itertools.count()


class SystemRandomness(Duel):
    """Draws something else at every reset, whatever the seed: counted, so that no two in a row agree."""

    def draw(self, seed: int | None) -> Any:
        count = next(DRAWN)
        return np.array([1 + count % 9, 1 + count // 9 % 9])


class DrawsGloballyInGame(Duel):
    def step(self, action: Any) -> None:
        random.random()
        super().step(action)


class RendersNothingInGame(Duel):
    def render(self) -> Any:
        return None


class ChangesToRender(Duel):
    def render(self) -> Any:
        self.secrets = self.secrets[::-1].copy()
        return super().render()


class SharesOneArray(Duel):
    """Rewrites one array at every call, and hands it to both."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.seen = np.zeros(2, np.float32)

    def observe(self, agent: str) -> Any:
        self.seen[:] = super().observe(agent)
        return self.seen


class RaisesInGame(Duel):
    def step(self, action: Any) -> None:
        if action == 1:
            raise RuntimeError("I do not like this action")
        super().step(action)


class GameStartsAnew(Duel, EzPickle):
    def __init__(self, render_mode: str | None = None) -> None:
        EzPickle.__init__(self, render_mode)
        Duel.__init__(self, render_mode)


class TellsSecrets(AECStream):
    """Shows every event to everybody."""

    @property
    def infos(self) -> Any:
        return {agent: self._all(info) for agent, info in super().infos.items()}

    def last(self, observe: bool = True) -> Any:
        *rest, info = super().last(observe)
        return *rest, self._all(info)

    def _all(self, info: dict[str, Any]) -> dict[str, Any]:
        stream = info["stream"]
        first = stream.events[0].seq if stream.events else len(self.record.events)
        return {**info, "stream": Stream(stream.requests, tuple(self.record.events[first:]))}


class Forgetful(TellsSecrets):
    """Leaves out what happened before the last event."""

    def _all(self, info: dict[str, Any]) -> dict[str, Any]:
        stream = info["stream"]
        return {**info, "stream": Stream(stream.requests, stream.events[-1:])}


class AsksNobody(TellsSecrets):
    """Says of nobody that he is active."""

    def _all(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, "active": False}


class Rush(ParallelEnv[str, Any, Any]):
    """A good simultaneous game: guess a bit for ten rounds, or ``max_cycles``."""

    metadata = {"name": "rush_v0", "render_modes": ["ansi"]}

    def __init__(self, max_cycles: int = 10, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents, self.agents = ["player_0", "player_1"], []
        self.spaces = {agent: Box(0, 10, (2,), np.float32) for agent in self.possible_agents}
        self.choices = {agent: Discrete(2) for agent in self.possible_agents}
        self.max_cycles, self._seeds = max_cycles, Seeds("Rush")

    def observation_space(self, agent: str) -> Any:
        return self.spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.choices[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.rng = np.random.default_rng(self._seeds.next(seed))
        self.agents, self.steps, self.bit = list(self.possible_agents), 0, 0
        return self.see(), {agent: {} for agent in self.agents}

    def see(self) -> Any:
        noise = 1 + self.rng.random()
        return {agent: np.array([noise, self.steps], np.float32) for agent in self.possible_agents}

    def limit(self) -> int:
        return self.max_cycles

    def step(self, actions: dict[str, Any]) -> Any:
        agents, self.steps, self.bit = self.agents, self.steps + 1, int(self.rng.integers(0, 2))
        late = self.steps >= self.limit()
        self.agents = [] if late else agents
        rewards = {agent: float(actions[agent] == self.bit) for agent in agents}
        none, all_late = dict.fromkeys(agents, False), dict.fromkeys(agents, late)
        return self.see(), rewards, none, all_late, {agent: {} for agent in agents}

    def render(self) -> Any:
        return str(self.steps) if self.render_mode == "ansi" else None

    def close(self) -> None:
        pass


class HandsOutOneArray(Rush):
    """A fresh one in every round, but the same one to both."""

    def see(self) -> Any:
        return dict.fromkeys(self.possible_agents, super().see()["player_0"])


class RewritesInRush(Rush):
    """Each has an array of its own, for all rounds."""

    def __init__(self, max_cycles: int = 10, render_mode: str | None = None) -> None:
        super().__init__(max_cycles, render_mode)
        self.seen = {agent: np.zeros(2, np.float32) for agent in self.possible_agents}

    def see(self) -> Any:
        for agent, fresh in super().see().items():
            self.seen[agent][:] = fresh
        return dict(self.seen)


class DrawsNumbersToRenderInRush(Rush):
    def render(self) -> Any:
        self.rng.random()
        return super().render()


class PaysNaNInRush(Rush):
    def step(self, actions: dict[str, Any]) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, dict.fromkeys(rewards, float("nan")), *rest


class OneRoundTooMany(Rush):
    def limit(self) -> int:
        return self.max_cycles + 1


class NewSpacesInRush(Rush):
    def action_space(self, agent: str) -> Any:
        return Discrete(2)


class SystemRandomnessInRush(Rush):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed)
        self.rng = np.random.default_rng()
        return result


class PaysMore(Duel):
    """What the parallel form is made of, where the AEC form is a plain ``Duel``."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.rewards:
            self.rewards = {agent: 2 * reward for agent, reward in self.rewards.items()}
