"""The base of games on a server, whether their agents act in turn or together."""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.actions import AgentActions
from envweave_gym.core.arguments import check_options, check_reproducible
from envweave_gym.core.faults import RESET_DEADLINE, Fault
from envweave_gym.core.protocols import check_agent, read_action
from envweave_gym.core.seeding import Seeds
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.game_record import GameRecord, Infos
from envweave_gym.episode.stream import Request
from envweave_gym.remote.served import CALL_DEADLINE, LOSSES, ServedEnvironment, Spaces


class RemoteGame:
    """A game on a server, which behaves as the same game does in this process, seeds and errors included.

    - Nothing is asked of the server before agents or spaces are; a session is opened by the first reset.
    - Actions are checked here as they are there, so a wrong one costs no call.
    - When the session is gone, no answer comes before ``call_deadline``, or the game crashes, it is lost:
      ``on_fault="truncate"`` truncates every live agent with its last observation, reward 0 and
      ``infos[agent]["fault"]``, and the next reset opens another session; ``"raise"`` raises. A reset is
      tried until ``reset_deadline`` is over, then gives placeholders, and the next step truncates.
    - Pickles and copies hold the address, not the session, which belongs to the process that opened it.
    """

    _api = ""

    def __init__(
        self,
        env_id: str,
        url: str,
        *,
        token: str | None = None,
        on_fault: str = "truncate",
        reset_deadline: float = RESET_DEADLINE,
        call_deadline: float = CALL_DEADLINE,
        reproducible: bool = False,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` go to the game; ``token`` is a reference, ``env:NAME`` or ``file:PATH``.

        ``reproducible=True`` gives a seed to resets that the game would else be given without one.
        """
        how: Any = {"on_fault": on_fault, "reset_deadline": reset_deadline, "call_deadline": call_deadline}
        client: Any = {"token": token, "reproducible": reproducible}
        self._again = partial(type(self), env_id, url, **client, **how, **kwargs)
        self._served = ServedEnvironment(env_id, url, api=self._api, token=token, kwargs=kwargs, **how)
        self.name = self._served.name
        check_reproducible(self.name, reproducible)
        self._served.reproducible = reproducible
        self._record, self._agent_actions = GameRecord(self.name), AgentActions(self.name)
        self._spaces, self._seeds = Spaces(self._served), Seeds(self.name)
        self.render_mode = kwargs.get("render_mode")
        self._begin()

    def _begin(self) -> None:
        self._agents: list[str] = []
        self._seen: dict[str, Any] = {}
        self._requests: tuple[Request, ...] = ()

    # Descriptions by the server

    @property
    def description(self) -> dict[str, Any]:
        """The server's description of the game."""
        return self._served.description

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the game."""
        return self.description["metadata"]

    @property
    def possible_agents(self) -> list[str]:
        """All agents that the game can have."""
        return list(self.description["agents"])

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of the observations of ``agent``."""
        return self._space("observation_space", agent)

    def action_space(self, agent: str) -> Space[Any]:
        """The space of the actions of ``agent``."""
        return self._space("action_space", agent)

    def _space(self, which: str, agent: str) -> Space[Any]:
        check_agent(self.name, self, agent)
        return self._spaces.of(self.description["agents"][agent], which, agent)

    # Questions to the session

    @property
    def agents(self) -> list[str]:
        """The agents that have not left; none before the first reset, and after a failure."""
        return [] if self._record.failed else self._agents

    def render(self) -> Any:
        """The game's picture; of a lost episode the last one."""
        self._record.check_begun("render")
        return self._served.picture()

    def state(self) -> Any:
        """PettingZoo's global view, where the game has one."""
        if self.description["has_state"]:
            return self._served.ask("global_state")
        name = self.metadata.get("name", self._served.name)
        raise NotImplementedError(f"state() method has not been implemented in the environment {name}.")

    def stream_state(self) -> dict[str, Any]:
        """The state that :func:`envweave_gym.state_of` shows; of a lost episode only the counters."""
        known = self._record.counters()
        if self._served.gone:
            return known
        return {**self._served.recall("state", known), "episode": known["episode"]}

    @property
    def record(self) -> GameRecord:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        record = GameRecord(self.name)
        record.turn, stream = self._served.ask("record")
        record.events, record.seq = list(stream.events), len(stream.events) - 1
        return record

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means; where the game is lost, any action, for the step that says so."""
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
        """Close the session."""
        self._served.close()
        self._agents = []

    # For the two kinds of games

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the game: the reply of the server, or the fault that the reset was lost to."""
        check_options(self.name, options, self.metadata)
        chosen, self._served.is_drawn = self._seeds.next(seed), seed is None
        self._record.abandon()
        outcome = self._served.reset(chosen, options)
        self._begin()
        return outcome

    def _lost_reset(self, fault: Fault, to_act: list[str]) -> Infos:
        """Record a reset that was lost; the infos of all agents, whose next step ends the game."""
        self._record.lost_reset(fault, self._served.sent_seed)
        self._agents = self.possible_agents
        self._requests = self._record.requests(to_act, over=False)
        return {
            agent: self._record.info({"fault": fault}, agent, self._requests, -1) for agent in self._agents
        }

    def _infos_of_loss(
        self, fault: Fault, live: list[str], unread: Infos | None = None, **actions: dict[str, Any]
    ) -> Infos:
        """Record the loss of the game; the infos of its agents.

        ``unread`` are infos whose events come first; an agent that was done before has lost nothing.
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
        return self._again, ()

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self._served.name} at {self._served.address.url}>>"

    __repr__ = __str__
