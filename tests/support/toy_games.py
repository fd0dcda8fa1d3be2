"""Small games with everything a stream has to cope with: secrets, leavers, rounds, crashes, refusals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv, ParallelEnv

from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.stream import reveal
from envweave_gym.wrappers.aec_stream import AECStream
from envweave_gym.wrappers.parallel_stream import ParallelStream

ID = "test/Toy-v0"
"""What the streams of :func:`whisper` and :func:`matching` call them."""
CRASH = 3
"""What makes :class:`Whisper` raise its ``failure``."""
BOTH = {"player_0": 0, "player_1": 0}
"""A step of :class:`Matching`."""
PASS, BID, LEAVE, BURN, REFUSE = range(5)
"""What may be done in an :class:`Auction`; ``BURN`` crashes it, ``REFUSE`` is refused."""


class InTurns(AECEnv[str, Any, Any]):
    """The tables of an AEC environment whose agents all have the same spaces."""

    def __init__(self, agents: list[str], seen: Any, done: Any) -> None:
        super().__init__()
        self.possible_agents = agents
        self._observation_spaces = {agent: copy.deepcopy(seen) for agent in agents}
        self._action_spaces = {agent: copy.deepcopy(done) for agent in agents}

    def observation_space(self, agent: str) -> Any:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[agent]

    def gather(self) -> None:
        """Everybody is there, and the first is to act."""
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self.agent_selection = self.agents[0]


class Whisper(InTurns, Emitter):
    """In turn, everybody says a number, and is told a secret for it. Whoever says 2 is out of the game.

    Action 3 crashes. After ``rounds`` of talk it is over. The mask always says that only 0 is legal.
    """

    metadata: dict[str, Any] = {"name": "whisper_v0", "render_modes": ["ansi"]}
    render_mode = "ansi"
    failure: BaseException = RuntimeError("lost in step")

    def __init__(self, players: int = 3, rounds: int = 3) -> None:
        seen = {"observation": Box(0, 100, (2,), np.float32), "action_mask": Box(0, 1, (4,), np.int8)}
        super().__init__([f"player_{i}" for i in range(players)], Dict(seen), Discrete(4))
        self.rounds = rounds

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if options and options.get("refuse"):
            raise InvalidArgument("no such option")
        if options and options.get("crash"):
            raise RuntimeError("lost in reset")
        self.base = seed or 0
        self.said = 0
        self.gather()
        self.infos = {agent: {"own": 0} for agent in self.agents}
        for agent in self.agents:
            self.emit(reveal((agent,), secret=f"welcome {agent}"))

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.emit(reveal((agent,), secret=f"psst {agent}"))
        if action == CRASH:
            raise self.failure
        self.said += 1
        self.rewards[agent] = float(action)
        self.infos[agent]["own"] += 1
        self.terminations[agent] = action == 2
        if self.said >= self.rounds * len(self.possible_agents):
            self.truncations = dict.fromkeys(self.agents, True)
        order = self.possible_agents
        following = [*order[order.index(agent) + 1 :], *order]
        alive = [one for one in following if one in self.agents and not self.terminations[one]]
        self.agent_selection = alive[0] if alive else agent
        self._accumulate_rewards()
        self._deads_step_first()

    def observe(self, agent: str) -> Any:
        seen = np.array([self.said, self.base % 100], np.float32)
        return {"observation": seen, "action_mask": np.array([1, 0, 0, 0], np.int8)}

    def render(self) -> str:
        return f"{self.said} words"

    def close(self) -> None:
        pass

    def episode_state(self) -> dict[str, Any]:
        return {"said": self.said}


class Matching(ParallelEnv[str, Any, Any]):
    """Both show a number; equal ones pay. ``player_1`` leaves after two rounds, ``player_0`` after four.

    A step raises ``failure`` or returns ``malformed``, where the test has set one.
    """

    metadata: dict[str, Any] = {"name": "matching_v0", "render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self._observation_spaces = {agent: Box(0, 9, (2,), np.float32) for agent in self.possible_agents}
        self._action_spaces = {agent: Discrete(4) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.round = list(self.possible_agents), 0
        self.failure: BaseException | None = None
        self.malformed: Any = None
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        if self.malformed is not None:
            return self.malformed
        self.round += 1
        pay = float(len(actions) == 2 and len(set(actions.values())) == 1)
        over = {agent: self.round >= (4 if agent == "player_0" else 2) for agent in self.agents}
        seen, rewards = self._seen(), dict.fromkeys(self.agents, pay)
        infos = {agent: {} for agent in self.agents}
        truncations = dict.fromkeys(self.agents, False)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, over, truncations, infos

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([1, self.round], np.float32) for agent in self.agents}


def whisper(**kwargs: Any) -> AECStream:
    return AECStream(Whisper(**kwargs), name=ID)


def matching() -> ParallelStream:
    return ParallelStream(Matching(), name=ID)


class Auction(InTurns, Emitter):
    """All bidders still in are asked at once; whoever bids pays 1 to the auctioneer.

    The auctioneer acts alone before each round. A bidder who leaves is done at once. With ``snap`` the first
    bid breaks the round off. Nobody but the auctioneer left, or ``rounds`` rounds over, it is done too.
    """

    metadata: dict[str, Any] = {"name": "auction_v0", "render_modes": ["ansi"]}
    render_mode = "ansi"

    def __init__(self, rounds: int = 3, snap: bool = False) -> None:
        agents = ["auctioneer_0", "bidder_0", "bidder_1", "bidder_2"]
        super().__init__(agents, Box(0, 9, (2,), np.float32), Discrete(5))
        self.rounds, self.snap, self.closed = rounds, snap, False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.gather()
        self.infos = {agent: {"own": agent} for agent in self.agents}
        self.round = 0
        self.waiting: list[str] = []

    def agents_to_act(self) -> list[str]:
        return self.waiting or ["auctioneer_0"]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if action == BURN:
            raise RuntimeError("the hall is on fire")
        if action == REFUSE:
            raise InvalidAction("the auctioneer frowns")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if agent == "auctioneer_0":
            self.waiting = [one for one in self.possible_agents[1:] if one in self.agents]
            self.emit(reveal(("auctioneer_0",), reserve=f"price {self.round}"))
        else:
            self._bid(agent, action)
        if not self.waiting:
            self.round += 1
        bidders = [one for one in self.agents if not self.terminations[one]]
        if self.round >= self.rounds or bidders == ["auctioneer_0"]:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = self.agents_to_act()[0]
        self._deads_step_first()

    def _bid(self, agent: str, action: Any) -> None:
        self.waiting.remove(agent)
        self.terminations[agent] = action == LEAVE
        if action == BID:
            self.rewards[agent], self.rewards["auctioneer_0"] = -1.0, 1.0
            self.waiting = [] if self.snap else self.waiting

    def observe(self, agent: str) -> Any:
        return np.array([1, self.round], np.float32)

    def render(self) -> str:
        return f"round {self.round}"

    def state(self) -> Any:
        return np.array([self.round], np.float32)

    def close(self) -> None:
        self.closed = True


class Relay(InTurns):
    """Three runners in turn; a runner is done when it has run, but leaves only when its turn comes again."""

    metadata: dict[str, Any] = {"name": "relay_v0", "render_modes": []}
    render_mode = None

    def __init__(self) -> None:
        super().__init__(["runner_0", "runner_1", "runner_2"], Discrete(3), Discrete(3))

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.gather()

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self.agents.remove(agent)
            for table in (
                self.rewards,
                self._cumulative_rewards,
                self.terminations,
                self.truncations,
                self.infos,
            ):
                del table[agent]
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self._clear_rewards()
        self.rewards[agent] = float(action)
        self.terminations[agent] = True
        self.agent_selection = self.possible_agents[(self.possible_agents.index(agent) + 1) % 3]

    def observe(self, agent: str) -> Any:
        return np.int64(len(self.agents) - 1)
