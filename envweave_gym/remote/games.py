"""Games on a server as PettingZoo environments: ``RemoteAEC`` and ``RemoteParallel``."""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Space
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.env import AECIterable

from envweave_gym.core.actions import AgentActions
from envweave_gym.core.arguments import check_options
from envweave_gym.core.faults import Fault, InvalidAction
from envweave_gym.core.protocols import check_agent
from envweave_gym.core.reply_parsing import read_action
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.game_record import GameRecord, Infos, ParallelStep
from envweave_gym.episode.stream import Request
from envweave_gym.remote.base import Remote
from envweave_gym.remote.served_environment import LOSSES
from envweave_gym.wire.values import pack


class RemoteGame(Remote):
    """A game on a server, which behaves as the same game does in this process, seeds and errors included.

    - The first access to agents or spaces fetches the description; the first reset opens a session.
    - Actions are checked here as on the server, so a wrong one costs no call.
    - If the session is gone, no reply comes before ``call_deadline``, or the game crashes, it is lost:
      ``on_fault="truncate"`` truncates every live agent with its last observation, reward 0 and
      ``infos[agent]["fault"]``, and the next reset opens another session; ``"raise"`` raises. A reset is
      tried until ``reset_deadline``, then returns placeholders, and the next step truncates.
    - Pickles and copies hold the address, not the session, which belongs to the process that opened it.
    """

    _pack = staticmethod(pack)
    """Function that converts an action to what the session's ``step`` takes."""

    def _prepare(self, render_mode: Any) -> None:
        self._record, self._agent_actions = GameRecord(self.name), AgentActions(self.name)
        self.render_mode = render_mode
        self._begin()

    def _begin(self) -> None:
        self._agents: list[str] = []
        self._seen: dict[str, Any] = {}
        self._requests: tuple[Request, ...] = ()

    # Descriptions by the server

    @property
    def possible_agents(self) -> list[str]:
        """All agents that the game can have, from the server's description."""
        return list(self.description["agents"])

    def observation_space(self, agent: str) -> Space[Any]:
        """Return the observation space of ``agent``."""
        return self._space("observation_space", agent)

    def action_space(self, agent: str) -> Space[Any]:
        """Return the action space of ``agent``."""
        return self._space("action_space", agent)

    def _space(self, which: str, agent: str) -> Space[Any]:
        check_agent(self.name, self, agent)
        return self._spaces.of(self.description["agents"][agent], which, agent)

    # Questions to the session

    @property
    def agents(self) -> list[str]:
        """Agents that have not left the game; an empty list before the first reset and after a loss."""
        return [] if self._record.failed else self._agents

    def render(self) -> Any:
        """Return the game's rendering; for a lost game, the last one that was fetched."""
        self._record.check_begun("render")
        return self._served.picture()

    def state(self) -> Any:
        """Return PettingZoo's global state; raise ``NotImplementedError`` if the game has none."""
        if self.description["has_state"]:
            return self._served.ask("global_state")
        name = self.metadata.get("name", self._served.name)
        raise NotImplementedError(f"state() method has not been implemented in the environment {name}.")

    def stream_state(self) -> dict[str, Any]:
        """Return the state for :func:`envweave_gym.state_of`; for a lost game, only the counters."""
        known = self._record.counters()
        if self._served.gone:
            return known
        return {**self._served.recall("state", known), "episode": known["episode"]}

    @property
    def record(self) -> GameRecord:
        """Numbered events of the episode as the operator sees them, including those hidden from agents."""
        record = GameRecord(self.name)
        record.turn, stream = self._served.ask("record")
        record.events, record.seq = list(stream.events), len(stream.events) - 1
        return record

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """Parse a model's text reply into an action of ``agent``, on the server.

        For a lost game any action is returned; the next step reports the loss.
        """
        if not self.description["parses"]:
            return read_action(self.action_space(str(agent)), text)
        if self._record.pending_fault is None:
            try:
                return self._served.ask("parse_action", [text, agent])
            except LOSSES as error:
                if not self.agents:
                    raise
                self._record.lost_between_steps(self._record.run(self._served.lost, error))
        return placeholder(self.action_space(str(agent)))

    def close(self) -> None:
        """Close the session; a later reset opens another one."""
        self._agents = []
        self._served.close()

    # For the two kinds of games

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the game on the server; return its reply, or the fault if the reset was lost."""
        check_options(self.name, options, self.metadata)
        chosen, self._served.is_drawn = self._seeds.next(seed), seed is None
        self._record.abandon()
        outcome = self._served.reset(chosen, options)
        self._begin()
        if not isinstance(outcome, Fault):
            self._record.begin()
        return outcome

    def _lost_reset(self, fault: Fault, to_act: list[str]) -> Infos:
        """Record that a reset was lost, and return the infos of all agents; their next step ends the game.

        ``to_act`` are the agents with an open request.
        """
        self._record.lost_reset(fault, self._served.sent_seed)
        self._agents = self.possible_agents
        self._requests = self._record.requests(to_act, over=False)
        return {
            agent: self._record.info({"fault": fault}, agent, self._requests, -1) for agent in self._agents
        }

    def _infos_of_loss(
        self, fault: Fault, live: list[str], unread: Infos | None = None, **actions: dict[str, Any]
    ) -> Infos:
        """Record the loss of the game, and return the infos of its agents.

        ``live`` are the agents that were not done, and the only ones that get the fault. ``unread`` are infos that
        no agent has read yet; their events come before the loss. ``actions`` are ``acted=`` and ``ignored=``, the
        actions of the lost step, as :meth:`GameRecord.lost` takes them.
        """
        record, unread = self._record, unread or {}
        before = record.seq
        record.lost(fault, live, **actions)
        requests, infos = record.requests((), over=True), Infos()
        for agent in {**unread, **dict.fromkeys(live)}:
            info = unread.get(agent, {})
            events = info["stream"].events if info else ()
            if agent in live:
                infos[agent] = record.info({"fault": fault}, agent, requests, before, events)
            else:
                infos[agent] = record.info(info, agent, requests, record.seq, events)
        return infos

    def _last_seen(self, agent: str) -> Any:
        return self._seen[agent] if agent in self._seen else placeholder(self.observation_space(agent))

    def __reduce__(self) -> Any:
        return self._make_again, ()

    def __repr__(self) -> str:
        return str(self)


class RemoteAEC(RemoteGame, AECEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Game on a server with PettingZoo's AEC API: agents act one at a time.

    The observation of the selected agent comes with every reply; other observations are requested on demand.
    """

    _api = "aec"

    def _begin(self) -> None:
        super()._begin()
        self._infos: Infos = {}
        self._fresh: set[str] = set()  # the agents whose last observation is the current one
        self._held: dict[str, Any] = {}  # the actions of the open round, which a loss has to record
        self._lost = False

    @property
    def infos(self) -> Infos:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Infos of the agents that have not left."""
        return {agent: self._infos[agent] for agent in self.agents}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode; its seed is in the ``episode_start`` event of :attr:`record`."""
        outcome = self._start(seed, options)
        if not isinstance(outcome, Fault):
            self._take(outcome.observation, outcome.info, outcome.info)
            return
        everybody = self.possible_agents
        self._infos = self._lost_reset(outcome, everybody[:1])
        self.rewards = dict.fromkeys(everybody, 0.0)
        self._cumulative_rewards = dict.fromkeys(everybody, 0.0)
        self.terminations = dict.fromkeys(everybody, False)
        self.truncations = dict.fromkeys(everybody, False)
        self.agent_selection = everybody[0]

    def step(self, action: Any) -> None:
        """Perform the selected agent's action; an agent that is done takes ``None`` and leaves."""
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
            self._remove_done(agent)
        if record.pending_fault is not None:
            self._lose(record.pending_fault, ignored=acted)

    def _play(self, agent: str, action: Any, acted: dict[str, Any]) -> None:
        outcome = self._record.run(self._served.step, self._pack(action))
        self._held |= acted
        if not isinstance(outcome, Fault):
            tables = (outcome.reward, outcome.terminated, outcome.truncated)
            names = ("rewards", "terminations", "truncations")
            self._take(outcome.observation, outcome.info, dict(zip(names, tables, strict=True)))
            return
        if not acted:
            self._remove_done(agent)
        self._lose(outcome, acted=self._held, actor=agent)

    def _take(self, observation: Any, table: dict[str, Any], results: dict[str, Any]) -> None:
        """Update the state of the game from a server's reply.

        ``observation`` is that of the selected agent. ``table`` has the agents, their infos, the rewards since each
        acted last, and the selected agent. ``results`` has the rewards and end flags of the last step.
        """
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
            if not info["stream"].requests:  # the round is closed, but agents that are done leave first
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
        """Truncate the live agents after a loss, and remove done agents without the server from now on.

        ``acted`` and ``ignored`` are actions of the open round to record, ``actor`` the agent whose action was
        lost.
        """
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

    def _remove_done(self, agent: str) -> None:
        """Remove an agent that is done."""
        tables = (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self._infos)
        for table in tables:
            table.pop(agent, None)
        self._agents.remove(agent)
        self.rewards = dict.fromkeys(self.rewards, 0.0)
        if self._agents:
            self.agent_selection = self._agents[0]

    def observe(self, agent: str) -> Any:
        """Return the observation of ``agent``; if the game is lost, the last one received."""
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
        """Return observation, reward, termination, truncation and info of the selected agent.

        The reward is the sum since the agent's last action; ``observe=False`` leaves the observation out.
        """
        if not self.agents:
            raise self._record.refusal("last")
        return super().last(observe)

    def agent_iter(self, max_iter: int = 2**63) -> AECIterable[str, Any, Any]:
        """Iterate over the agents in the order of their turns."""
        self._record.check_begun("agent_iter")
        return super().agent_iter(max_iter)

    def as_parallel(self) -> RemoteParallel:
        """Return another game of the same ID and arguments on the server, with the parallel API."""
        return RemoteParallel(*self._make_again.args, **self._make_again.keywords)


class RemoteParallel(RemoteGame, ParallelEnv[str, Any, Any]):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Game on a server with PettingZoo's parallel API; only actions of agents with an open request count."""

    _api = "parallel"

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], Infos]:
        """Start an episode; its seed is in the ``episode_start`` event of :attr:`record`."""
        outcome = self._start(seed, options)
        if isinstance(outcome, Fault):
            infos = self._lost_reset(outcome, self.possible_agents)
            return {agent: self._last_seen(agent) for agent in infos}, infos
        self._take(outcome.observation, outcome.info)
        return outcome.observation, outcome.info["infos"]

    def step(self, actions: dict[str, Any]) -> ParallelStep:
        """Send the actions of agents with open requests; actions of other agents are recorded as ignored."""
        record = self._record
        if not self.agents:
            self._served.check_whole()
            return record.step_after_end(actions)
        to_act = [request.agent for request in self._requests if request.agent is not None]
        acted = self._agent_actions.admit_all(self, to_act, actions)
        if record.pending_fault is not None:
            return self._lose(record.pending_fault, {}, actions)
        packed = {agent: self._pack(one) for agent, one in actions.items()}
        outcome = record.run(self._served.step, packed)
        if isinstance(outcome, Fault):
            others = {agent: one for agent, one in actions.items() if agent not in acted}
            return self._lose(outcome, acted, others)
        self._take(outcome.observation, outcome.info)
        infos = outcome.info["infos"]
        return outcome.observation, outcome.reward, outcome.terminated, outcome.truncated, infos

    def _take(self, observations: dict[str, Any], table: dict[str, Any]) -> None:
        """Update the game from a server's reply: observations by agent, and a table with the agents and their infos."""
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
