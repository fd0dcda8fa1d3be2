"""Games on a server, as PettingZoo environments: one agent at a time, or all together."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.env import AECIterable

from envweave_gym.core.faults import Fault, InvalidAction
from envweave_gym.remote.lost_games import lost_infos, lost_round
from envweave_gym.remote.served import LOSSES
from envweave_gym.remote.served_game import RemoteGame
from envweave_gym.wire.values import pack
from envweave_gym.wrappers.narrator import Infos, ParallelStep


class RemoteAEC(RemoteGame, AECEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A game on a server, whose agents act one at a time.

    What the selected agent sees comes with every reply, what others see is asked for when it is wanted.
    """

    _api = "aec"

    def _begin(self) -> None:
        super()._begin()
        self._infos: Infos = {}
        self._fresh: set[str] = set()
        self._held: dict[str, Any] = {}
        self._lost = False

    @property
    def infos(self) -> Infos:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What every agent that has not left may know."""
        return {agent: self._infos[agent] for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; its seed is in the ``episode_start`` event of the ledger."""
        outcome = self._start(seed, options)
        if not isinstance(outcome, Fault):
            table = outcome.info
            self._take(outcome.observation, table, table)
            return
        everybody = self.possible_agents
        self._infos = self._lost_reset(outcome, everybody[:1])
        self.rewards = dict.fromkeys(everybody, 0.0)
        self._cumulative_rewards = dict.fromkeys(everybody, 0.0)
        self.terminations = dict.fromkeys(everybody, False)
        self.truncations = dict.fromkeys(everybody, False)
        self.agent_selection = everybody[0]

    def step(self, action: Any) -> None:
        """Let the selected agent act; one that is done takes ``None`` and leaves."""
        narrator = self._narrator
        if not self.agents:
            self._served.check_whole()
            raise narrator.refusal()
        agent = self.agent_selection
        done = agent not in self._live()
        if done and action is not None:
            raise InvalidAction(f"{narrator.name}: {agent} is done and takes no action but None")
        acted = {} if done else {agent: narrator.admit(self, agent, action)}
        if self._broken is None and not self._lost:
            self._play(agent, action, acted)
            return
        if done:
            self._see_off(agent)
        if self._broken is not None:
            self._lose(self._broken, ignored=acted)

    def _play(self, agent: str, action: Any, acted: dict[str, Any]) -> None:
        outcome = self._tried(self._served.step, pack(action))
        self._held |= acted
        if not isinstance(outcome, Fault):
            tables = (outcome.reward, outcome.terminated, outcome.truncated)
            names = ("rewards", "terminations", "truncations")
            self._take(outcome.observation, outcome.info, dict(zip(names, tables, strict=True)))
            return
        if not acted:
            self._see_off(agent)
        self._lose(outcome, acted=self._held, actor=agent)

    def _take(self, observation: Any, table: dict[str, Any], results: dict[str, Any]) -> None:
        """Take over how the game stands."""
        self._agents, self._infos = table["agents"], table["infos"]
        self._cumulative_rewards = table["earned"]
        self.rewards, self.terminations = results["rewards"], results["terminations"]
        self.truncations = results["truncations"]
        self._fresh.clear()
        if self._agents:
            agent = self.agent_selection = table["selection"]
            self._seen[agent] = observation
            self._fresh.add(agent)
            before = self._turn
            self._note(self._infos[agent])
            if not self._requests:
                self._turn += bool(self._held)
            if self._turn != before:
                self._held = {}
        if not self._live():
            self._faults.clear()

    def _live(self) -> list[str]:
        return [one for one in self._agents if not (self.terminations[one] or self.truncations[one])]

    def _lose(self, fault: Fault, *, acted: Any = (), ignored: Any = (), actor: str | None = None) -> None:
        """Truncate everybody who lives, if anybody does; from now on agents leave without the server."""
        live, self._lost, self._broken = self._live(), True, None
        if not live:
            self._faults.clear()
            return
        events = lost_round(fault, live, acted=dict(acted), ignored=dict(ignored))
        unread = {one: info for one, info in self._infos.items() if one != actor}
        turn = self._turn + bool(acted or ignored)
        self._infos |= lost_infos(fault, live, events, seq=self._seq, turn=turn, unread=unread)
        self._turn = turn
        self.rewards = dict.fromkeys(self.rewards, 0.0)
        self._cumulative_rewards |= dict.fromkeys(live, 0.0)
        self.truncations |= dict.fromkeys(live, True)
        self.agent_selection = self._agents[0]

    def _see_off(self, agent: str) -> None:
        """Let an agent leave that is done."""
        tables = (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self._infos)
        for table in tables:
            table.pop(agent, None)
        self._agents.remove(agent)
        self.rewards = dict.fromkeys(self.rewards, 0.0)
        if self._agents:
            self.agent_selection = self._agents[0]

    def observe(self, agent: str) -> Any:
        """What ``agent`` observes; the last that it has seen where the game is lost."""
        self._narrator.check_begun("observe")
        self._narrator.check_agent(self, agent)
        if agent not in self._fresh and self._broken is None and not self._lost:
            self._look(agent)
        return self._last_seen(agent)

    def _look(self, agent: str) -> None:
        try:
            self._seen[agent] = self._served.ask("observe", agent)
            self._fresh.add(agent)
        except LOSSES as error:
            if not self.agents:
                raise
            self._lose(self._tried(self._served.lost, error))

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """What the selected agent knows: observation, reward since it acted last, ends, info."""
        if not self.agents:
            raise self._narrator.refusal("last")
        return super().last(observe)

    def agent_iter(self, max_iter: int = 2**63) -> AECIterable[str, Any, Any]:
        """The agents as their turns come."""
        self._narrator.check_begun("agent_iter")
        return super().agent_iter(max_iter)


class RemoteParallel(RemoteGame, ParallelEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A game on a server, whose agents act together; its stream says who is asked, as in a game of turns."""

    _api = "parallel"

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event of the ledger."""
        outcome = self._start(seed, options)
        if isinstance(outcome, Fault):
            infos = self._lost_reset(outcome, self.possible_agents)
            return {agent: self._last_seen(agent) for agent in infos}, infos
        self._take(outcome.observation, outcome.info)
        return outcome.observation, outcome.info["infos"]

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Let those act who are asked; actions of others are ignored and recorded."""
        narrator = self._narrator
        if not self.agents:
            self._served.check_whole()
            return narrator.no_step(actions)
        asked = [request.agent for request in self._requests if request.agent is not None]
        acted = narrator.admit_all(self, asked, actions)
        if self._broken is not None:
            return self._lose(self._broken, {}, actions)
        outcome = self._tried(self._served.step, {agent: pack(one) for agent, one in actions.items()})
        if isinstance(outcome, Fault):
            others = {agent: one for agent, one in actions.items() if agent not in acted}
            return self._lose(outcome, acted, others)
        self._take(outcome.observation, outcome.info)
        infos = outcome.info["infos"]
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, infos

    def _take(self, observations: dict[str, Any], told: dict[str, Any]) -> None:
        self._seen.update(observations)
        self._agents = told["agents"]
        for info in told["infos"].values():
            self._note(info)
            break
        if not self._agents:
            self._faults.clear()

    def _lose(self, fault: Fault, acted: dict[str, Any], ignored: dict[str, Any]) -> ParallelStep:
        live, self._agents, self._broken = self._agents, [], None
        self._turn += 1
        events = lost_round(fault, live, acted=acted, ignored=ignored)
        infos = lost_infos(fault, live, events, seq=self._seq, turn=self._turn)
        ends = dict.fromkeys(live, False), dict.fromkeys(live, True)
        return {agent: self._last_seen(agent) for agent in live}, dict.fromkeys(live, 0.0), *ends, infos
