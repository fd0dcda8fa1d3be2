"""Games on a server as PettingZoo environments: ``AECEnv``, one agent at a time, and ``ParallelEnv``."""

from __future__ import annotations

from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.env import AECIterable

from envweave_gym.core.faults import Fault, InvalidAction
from envweave_gym.core.protocols import check_agent
from envweave_gym.episode.game_record import Infos, ParallelStep
from envweave_gym.remote.base_game import RemoteGame
from envweave_gym.remote.served import LOSSES
from envweave_gym.wire.values import pack


class RemoteAEC(RemoteGame, AECEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A game on a server, whose agents act one at a time.

    The observation of the selected agent comes with every reply, those of others are fetched on demand.
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
        """The info of every agent that has not left."""
        return {agent: self._infos[agent] for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; its seed is in the ``episode_start`` event of :attr:`record`."""
        outcome = self._start(seed, options)
        if not isinstance(outcome, Fault):
            table = outcome.info
            self._record.adopt_reset(table["infos"][table["selection"]])
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
        record = self._record
        if not self.agents:
            self._served.check_whole()
            raise record.refusal()
        agent = self.agent_selection
        done = agent not in self._live()
        if done and action is not None:
            raise InvalidAction(f"{self.name}: {agent} is done and takes no action but None")
        acted = {} if done else {agent: self._agent_actions.admit(self, agent, action)}
        if record.pending_fault is None and not self._lost:
            self._play(agent, action, acted)
            return
        if done:
            self._see_off(agent)
        if record.pending_fault is not None:
            self._lose(record.pending_fault, ignored=acted)

    def _play(self, agent: str, action: Any, acted: dict[str, Any]) -> None:
        outcome = self._record.run(self._served.step, pack(action))
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
        """Take over the state of the game from a reply."""
        self._agents, self._infos = table["agents"], table["infos"]
        self._cumulative_rewards = table["earned"]
        self.rewards, self.terminations = results["rewards"], results["terminations"]
        self.truncations = results["truncations"]
        self._fresh.clear()
        if self._agents:
            agent = self.agent_selection = table["selection"]
            self._seen[agent] = observation
            self._fresh.add(agent)
            record, info = self._record, self._infos[agent]
            before = record.turn
            record.adopt(info)
            if not info["stream"].requests:  # the round is closed, and agents that are done leave first
                record.turn += bool(self._held)
            if record.turn != before:
                self._held = {}
        if not self._live():
            self._record.played()

    def _live(self) -> list[str]:
        return [one for one in self._agents if not (self.terminations[one] or self.truncations[one])]

    def _lose(
        self,
        fault: Fault,
        *,
        acted: dict[str, Any] | None = None,
        ignored: dict[str, Any] | None = None,
        actor: str | None = None,
    ) -> None:
        """Truncate the live agents, if there are any; from now on agents leave without the server."""
        live, self._lost = self._live(), True
        if not live:
            self._record.played()
            return
        unread = {one: info for one, info in self._infos.items() if one != actor}
        self._infos |= self._infos_of_loss(fault, live, unread, acted=acted or {}, ignored=ignored or {})
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
        """The observation of ``agent``; its last one where the game is lost."""
        self._record.check_begun("observe")
        check_agent(self.name, self, agent)
        if agent not in self._fresh and self._record.pending_fault is None and not self._lost:
            self._fetch(agent)
        return self._last_seen(agent)

    def _fetch(self, agent: str) -> None:
        try:
            self._seen[agent] = self._served.ask("observe", agent)
            self._fresh.add(agent)
        except LOSSES as error:
            if not self.agents:
                raise
            self._lose(self._record.run(self._served.lost, error))

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The selected agent's observation, reward since it acted last, ends and info."""
        if not self.agents:
            raise self._record.refusal("last")
        return super().last(observe)

    def agent_iter(self, max_iter: int = 2**63) -> AECIterable[str, Any, Any]:
        """The agents as their turns come."""
        self._record.check_begun("agent_iter")
        return super().agent_iter(max_iter)


class RemoteParallel(RemoteGame, ParallelEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """A game on a server, whose agents act together; its requests say whose actions count."""

    _api = "parallel"

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event of :attr:`record`."""
        outcome = self._start(seed, options)
        if isinstance(outcome, Fault):
            infos = self._lost_reset(outcome, self.possible_agents)
            return {agent: self._last_seen(agent) for agent in infos}, infos
        infos = outcome.info["infos"]
        self._record.adopt_reset(next(iter(infos.values())))
        self._take(outcome.observation, outcome.info)
        return outcome.observation, infos

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Let the agents of the open requests act; actions of others are ignored and recorded."""
        record = self._record
        if not self.agents:
            self._served.check_whole()
            return record.step_after_end(actions)
        to_act = [request.agent for request in self._requests if request.agent is not None]
        acted = self._agent_actions.admit_all(self, to_act, actions)
        if record.pending_fault is not None:
            return self._lose(record.pending_fault, {}, actions)
        packed = {agent: pack(one) for agent, one in actions.items()}
        outcome = record.run(self._served.step, packed)
        if isinstance(outcome, Fault):
            others = {agent: one for agent, one in actions.items() if agent not in acted}
            return self._lose(outcome, acted, others)
        self._take(outcome.observation, outcome.info)
        infos = outcome.info["infos"]
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, infos

    def _take(self, observations: dict[str, Any], table: dict[str, Any]) -> None:
        """Take over the state of the game from a reply."""
        self._seen.update(observations)
        self._agents = table["agents"]
        for info in table["infos"].values():
            self._record.adopt(info)
            self._requests = info["stream"].requests
            break
        if not self._agents:
            self._record.played()

    def _lose(self, fault: Fault, acted: dict[str, Any], ignored: dict[str, Any]) -> ParallelStep:
        live, self._agents = self._agents, []
        infos = self._infos_of_loss(fault, live, acted=acted, ignored=ignored)
        ends = dict.fromkeys(live, False), dict.fromkeys(live, True)
        return {agent: self._last_seen(agent) for agent in live}, dict.fromkeys(live, 0.0), *ends, infos
