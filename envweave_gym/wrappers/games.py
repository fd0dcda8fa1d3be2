"""The stream of PettingZoo environments: who must act, what happened, and only what each agent may see.

``infos[agent]`` holds ``stream`` (all open requests, and the events visible to the agent), ``seq`` (the
number of the last event) and ``active`` (whether the agent must act now), from the reset on.

Agents who are asked at once do not see each other's actions before all of them have acted: what they do is
held back until their round is closed. So a simultaneous game keeps its meaning when it is played one agent at
a time, and its AEC and its parallel form write the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gymnasium.spaces import Space
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec_wrapper
from pettingzoo.utils.env import AECIterable
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from envweave_gym.core.faults import InvalidAction
from envweave_gym.core.protocols import layers
from envweave_gym.episode.ledger import Ledger
from envweave_gym.episode.stream import Request
from envweave_gym.wrappers.narrator import Infos, Narrator, ParallelStep


class AsksSeveral(Protocol):
    """What an AEC environment may offer beside PettingZoo's interface: asking several agents at once.

    ``agent_selection`` is one of them, and once it has acted the next of them. They are one round: nobody
    sees its actions before all have acted. The environment breaks it off by asking somebody else.
    """

    def agents_to_act(self) -> list[str]:
        """The agents whose action is awaited now."""
        ...


class AECStream(BaseWrapper[str, Any, Any]):
    """Gives an AEC environment its stream: an agent reads in ``infos`` all it may see since it acted last.

    A wrong action raises :class:`InvalidAction` and nothing is done; a call out of order raises
    :class:`ResetNeeded`. An exception of the environment is raised, and ends the episode.
    """

    def __init__(
        self, env: AECEnv[str, Any, Any], *, name: str | None = None, reproducible: bool = True
    ) -> None:
        """``name`` is what errors call the environment: its ID, where it has one.

        With ``reproducible=False`` resets without a seed reach the environment so, all but the first.
        """
        super().__init__(env)
        self.narrator = Narrator(env.unwrapped, name, reproducible)
        self.name = self.narrator.name
        self._several: AsksSeveral | None = next(
            (layer for layer in layers(env) if hasattr(type(layer), "agents_to_act")), None
        )
        self._simultaneous = any(isinstance(layer, parallel_to_aec_wrapper) for layer in layers(env))
        self._begin()

    def _begin(self) -> None:
        self._agents: list[str] = []
        self._live: list[str] = []
        self._selected = ""
        self._asked: list[str] = []
        self._held: dict[str, Any] = {}
        self._earned: dict[str, float] = {}
        self._ended: set[str] = set()
        self._read: dict[str, int] = {}
        self._refresh()

    def _refresh(self) -> None:
        self._requests: tuple[Request, ...] | None = None
        self._infos: Infos = {}

    @property
    def agents(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The agents that have not left; none before the first reset, and after a failure."""
        return self._agents if self.narrator.live else []

    @property
    def infos(self) -> Infos:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The environment's own infos with the stream."""
        return {agent: self._info(agent) for agent in self.agents}

    def _info(self, agent: str) -> dict[str, Any]:
        info = self._infos.get(agent)
        if info is None:
            read = self._read.get(agent, -1)
            info = self.narrator.info(self.env.infos[agent], agent, self.requests(), read)
            self._infos[agent] = info
        return info

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; its seed is in the ``episode_start`` event."""
        self._refresh()
        self.narrator.reset(self.env, seed, options)
        self._begin()
        self.narrator.play(self._ask)

    def step(self, action: Any) -> None:
        """Let the selected agent act; one that is done takes ``None`` and leaves."""
        narrator, agent = self.narrator, self._selected
        if not self.agents:
            raise narrator.refusal()
        if agent in self._live:
            narrator.play(self._act, agent, action, narrator.admit(self.env, agent, action))
        elif action is None:
            narrator.play(self._leave, agent)
        else:
            raise InvalidAction(f"{narrator.name}: {agent} is done and takes no action but None")

    def _act(self, agent: str, action: Any, admitted: Any) -> None:
        env = self.env
        self._refresh()
        env.step(action)
        self._read[agent] = self.narrator.ledger.seq
        self._held[agent] = admitted
        for earner, reward in env.rewards.items():
            if reward:
                self._earned[earner] = self._earned.get(earner, 0.0) + float(reward)
        waiting = [other for other in self._asked if other != agent]
        self._ask()
        done = [one for one in self._agents if one not in self._live and one not in self._ended]
        if done or not self._asked or any(one not in waiting for one in self._asked):
            self._close_round(done)

    def _close_round(self, done: list[str]) -> None:
        self.narrator.acted(self._held, self._earned)
        for agent in done:
            self._ended.add(agent)
            self.narrator.ended(agent, self.env.terminations[agent], self.env.truncations[agent])
        self._held, self._earned = {}, {}
        if self._simultaneous:
            self._ask()

    def _leave(self, agent: str) -> None:
        self._refresh()
        self.env.step(None)
        if agent in self.env.agents:
            raise RuntimeError(f"{self.narrator.name}: {agent} is done, and step(None) left it in agents")
        self._ask()

    def _ask(self) -> None:
        """Look once who is there, who lives and who must act: attributes of wrapped environments are dear."""
        env = self.env
        terminated, truncated = env.terminations, env.truncations
        self._agents, self._selected = env.agents, env.agent_selection
        self._live = [agent for agent in self._agents if not (terminated[agent] or truncated[agent])]
        if self._selected not in self._live:
            self._asked = []
            return
        others: Iterable[str] = ()
        if self._simultaneous:
            others = [agent for agent in self._live if agent not in self._held]
        elif self._several is not None:
            others = [agent for agent in self._several.agents_to_act() if agent in self._live]
        self._asked = [self._selected, *(agent for agent in others if agent != self._selected)]

    def live_agents(self) -> list[str]:
        """The agents whose part is not over."""
        return self._live if self.narrator.live else []

    def asked(self) -> list[str]:
        """Whose action is awaited, the selected agent's first; nobody's while that one is done."""
        return self._asked if self.narrator.live else []

    def requests(self) -> tuple[Request, ...]:
        """Who must answer now."""
        if self._requests is None:
            self._requests = self.narrator.requests(self.asked(), over=not self.live_agents())
        return self._requests

    def ignore(self, actions: Mapping[str, Any]) -> None:
        """Record actions of agents who were not asked."""
        self.narrator.ignored(actions)
        self._refresh()

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the selected agent knows: observation, reward since it acted last, ends, info."""
        if not self.agents:
            raise self.narrator.refusal("last")
        env, agent = self.env, self._selected
        observation = env.observe(agent) if observe else None
        ends = env.terminations[agent], env.truncations[agent]
        return observation, env._cumulative_rewards[agent], *ends, self._info(agent)

    def observe(self, agent: str) -> Any:
        """What ``agent`` observes."""
        self.narrator.check_begun("observe")
        self.narrator.check_agent(self.env, agent)
        return self.env.observe(agent)

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` observes."""
        self.narrator.check_agent(self.env, agent)
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` may do."""
        self.narrator.check_agent(self.env, agent)
        return self.env.action_space(agent)

    def render(self) -> Any:
        """What the environment draws."""
        self.narrator.check_begun("render")
        return self.env.render()

    def agent_iter(self, max_iter: int = 2**63) -> AECIterable[str, Any, Any]:
        """The agents as their turns come."""
        self.narrator.check_begun("agent_iter")
        return super().agent_iter(max_iter)

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return self.narrator.state()

    @property
    def ledger(self) -> Ledger:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        return self.narrator.ledger


class ParallelStream(BaseParallelWrapper[str, Any, Any]):
    """Gives a ParallelEnv its stream: every live agent is asked, and reads what it may see of the last step.

    Wrong actions, calls out of order and exceptions of the environment are treated as by :class:`AECStream`.
    """

    def __init__(
        self, env: ParallelEnv[str, Any, Any], *, name: str | None = None, reproducible: bool = True
    ) -> None:
        """``name`` is what errors call the environment: its ID, where it has one.

        With ``reproducible=False`` resets without a seed reach the environment so, all but the first.
        """
        super().__init__(env)
        self.narrator = Narrator(env.unwrapped, name, reproducible)
        self.name = self.narrator.name

    @property
    def agents(self) -> list[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The live agents; none before the first reset, and after a failure."""
        return self.env.agents if self.narrator.live else []

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event."""
        return self.narrator.play(self._begin, self.narrator.reset(self.env, seed, options))

    def _begin(self, reply: Any) -> tuple[dict[str, Any], Infos]:
        observations, infos = reply
        return observations, self._with_stream(infos, -1)

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Let every live agent act; actions of agents that are done are ignored and recorded."""
        narrator, live = self.narrator, list(self.agents)
        if not live:
            return narrator.no_step(actions)
        return narrator.play(self._act, live, actions, narrator.admit_all(self.env, live, actions))

    def _act(self, live: list[str], actions: dict[str, Any], admitted: dict[str, Any]) -> ParallelStep:
        narrator, chosen = self.narrator, {agent: actions[agent] for agent in live}
        observations, rewards, terminations, truncations, infos = self.env.step(chosen)
        before = narrator.ledger.seq
        if len(actions) > len(live):
            narrator.ignored({agent: action for agent, action in actions.items() if agent not in chosen})
        narrator.acted(admitted, rewards)
        for agent in live:
            if terminations[agent] or truncations[agent]:
                narrator.ended(agent, terminations[agent], truncations[agent])
        return observations, rewards, terminations, truncations, self._with_stream(infos, before)

    def _with_stream(self, infos: Infos, since: int) -> Infos:
        requests = self.narrator.requests(self.agents, over=not self.agents)
        everybody = {**{agent: {} for agent in self.agents}, **infos}
        return {agent: self.narrator.info(own, agent, requests, since) for agent, own in everybody.items()}

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` observes."""
        self.narrator.check_agent(self.env, agent)
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` may do."""
        self.narrator.check_agent(self.env, agent)
        return self.env.action_space(agent)

    def render(self) -> Any:
        """What the environment draws."""
        self.narrator.check_begun("render")
        return self.env.render()

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return self.narrator.state()

    @property
    def ledger(self) -> Ledger:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        return self.narrator.ledger
