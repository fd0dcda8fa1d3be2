"""The stream of PettingZoo's AEC environments: requests, and the events that each agent may see.

``infos[agent]`` holds ``stream`` (all open requests, and the events visible to the agent), ``seq`` (the
number of the last event) and ``active`` (whether the agent must act now), from the reset on.

Agents that act simultaneously do not see each other's actions before all of them have acted: the events are held back
until the round is complete. So a simultaneous game has the same rules if it is played one agent at a time, and its AEC
and parallel forms record the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from pettingzoo.utils.conversions import parallel_to_aec_wrapper
from pettingzoo.utils.env import AECIterable
from pettingzoo.utils.wrappers import BaseWrapper

from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.protocols import check_agent, layers
from envweave_gym.episode.emitter import drain
from envweave_gym.episode.game_record import Infos
from envweave_gym.episode.stream import Request
from envweave_gym.wrappers.game_stream import GameStream


class HasAgentsToAct(Protocol):
    """Protocol for AEC environments in which several agents act simultaneously.

    The agents that :meth:`agents_to_act` returns form one round: no agent sees the round's actions before all have
    acted. ``agent_selection`` is one of them at a time. The environment ends a round early by selecting an agent
    that is not one of them.
    """

    def agents_to_act(self) -> list[str]:
        """Return the agents that must act now."""
        ...


class AECStream(GameStream, BaseWrapper[str, Any, Any]):
    """Wrapper that adds the stream to an AEC environment: an agent's info has the events since its last action.

    A wrong action raises :class:`InvalidAction` and has no effect; a call out of order raises
    :class:`ResetNeeded`. An exception of the environment is raised, and ends the episode.
    """

    def __init__(self, env: Any, *, name: str | None = None, reproducible: bool = True) -> None:
        """Wrap ``env``; the arguments are those of :class:`GameStream`."""
        super().__init__(env, name=name, reproducible=reproducible)
        self._several: HasAgentsToAct | None = next(
            (layer for layer in layers(env) if hasattr(type(layer), "agents_to_act")), None
        )
        # Parallel_to_aec collects the actions until all agents have acted.
        self._simultaneous = any(isinstance(layer, parallel_to_aec_wrapper) for layer in layers(env))
        self._begin()

    def _begin(self) -> None:
        self._agents: list[str] = []
        self.live_agents: list[str] = []
        """The agents whose part in the game is not over."""
        self.to_act: list[str] = []
        """The agents that must act, the selected one first; empty if the selected one is done."""
        self._selected = ""
        # Actions and rewards of the open round are recorded when it closes, so that nobody sees them before.
        self._held: dict[str, Any] = {}
        self._earned: dict[str, float] = {}
        self._ended: set[str] = set()
        self._read: dict[str, int] = {}  # by agent, the number of the last event before its last action
        self._forget_infos()

    def _forget_infos(self) -> None:
        self._requests: tuple[Request, ...] | None = None
        self._infos: Infos = {}

    @property
    def agents(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The agents that have not left the game; empty before the first reset, and after a failure."""
        return [] if self.record.failed else self._agents

    @property
    def infos(self) -> Infos:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The environment's own infos, with the stream added."""
        return {agent: self._info(agent) for agent in self.agents}

    def _info(self, agent: str) -> dict[str, Any]:
        info = self._infos.get(agent)
        if info is None:
            read = self._read.get(agent, -1)
            info = self.record.info(self.env.infos[agent], agent, self.requests(), read)
            self._infos[agent] = info
        return info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; its seed is in the ``episode_start`` event."""
        self._forget_infos()
        self._reset_env(seed, options)
        self._begin()
        self.record.run(self._read_agents)

    def step(self, action: Any) -> None:
        """Let the selected agent act; an agent that is done takes ``None`` and leaves the game."""
        record, agent = self.record, self._selected
        if record.failed or not self._agents:
            raise record.refusal()
        if agent in self.live_agents:
            record.run(self._act, agent, action, self.agent_actions.admit(self.env, agent, action))
        elif action is None:
            record.run(self._leave, agent)
        else:
            raise InvalidAction(f"{self.name}: {agent} is done and takes no action but None")

    def _act(self, agent: str, action: Any, admitted: Any) -> None:
        env = self.env
        self._forget_infos()
        env.step(action)
        self._read[agent] = self.record.seq
        self._held[agent] = admitted
        for earner, reward in env.rewards.items():
            if reward:
                self._earned[earner] = self._earned.get(earner, 0.0) + float(reward)
        waiting = [other for other in self.to_act if other != agent]
        self._read_agents()
        done = [one for one in self._agents if one not in self.live_agents and one not in self._ended]
        # A round also ends when an agent is done, or when one is selected that was not waiting in it.
        if done or not self.to_act or any(one not in waiting for one in self.to_act):
            self._close_round(done)

    def _close_round(self, done: list[str]) -> None:
        self.record.acted(self._held, self._earned, drain(self._emitter))
        for agent in done:
            self._ended.add(agent)
            self.record.ended(agent, self.env.terminations[agent], self.env.truncations[agent])
        self._held, self._earned = {}, {}
        if self._simultaneous:
            self._read_agents()  # again: those to act depend on the actions held back

    def _leave(self, agent: str) -> None:
        self._forget_infos()
        self.env.step(None)
        if agent in self.env.agents:
            raise RuntimeError(f"{self.name}: {agent} is done, and step(None) left it in agents")
        self._read_agents()

    def _read_agents(self) -> None:
        """Store which agents are present, live and must act, as attributes behind wrappers are slow to read."""
        env = self.env
        terminated, truncated = env.terminations, env.truncations
        self._agents, self._selected = env.agents, env.agent_selection
        self.live_agents = [agent for agent in self._agents if not (terminated[agent] or truncated[agent])]
        if self._selected not in self.live_agents:
            self.to_act = []
            return
        others: Iterable[str] = ()
        if self._simultaneous:
            others = [agent for agent in self.live_agents if agent not in self._held]
        elif self._several is not None:
            others = [agent for agent in self._several.agents_to_act() if agent in self.live_agents]
        self.to_act = [self._selected, *(agent for agent in others if agent != self._selected)]

    def requests(self) -> tuple[Request, ...]:
        """Return the open requests."""
        if self._requests is None:
            over = self.record.failed or not self.live_agents
            self._requests = self.record.requests(self.to_act, over=over)
        return self._requests

    def ignore(self, actions: Mapping[str, Any]) -> None:
        """Record actions of agents that had no request."""
        self.record.ignored(actions)
        self._forget_infos()

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the selected agent's observation, reward since its last action, two end flags and info."""
        if not self.agents:
            raise self.record.refusal("last")
        env, agent = self.env, self._selected
        observation = env.observe(agent) if observe else None
        ends = env.terminations[agent], env.truncations[agent]
        # The same rewards as those of PettingZoo's own last().
        return observation, env._cumulative_rewards[agent], *ends, self._info(agent)

    def observe(self, agent: str) -> Any:
        """Return the observation of ``agent``."""
        self.record.check_begun("observe")
        check_agent(self.name, self.env, agent)
        return self.env.observe(agent)

    def agent_iter(self, max_iter: int = 2**63) -> AECIterable[str, Any, Any]:
        """Iterate over the selected agents, one for each step."""
        self.record.check_begun("agent_iter")
        return super().agent_iter(max_iter)
