"""What the games of a server have in common, whether their agents act in turn or together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.arguments import check_reproducible
from envweave_gym.core.faults import RESET_DEADLINE, Fault, FaultStorm
from envweave_gym.core.protocols import read_action
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.ledger import Ledger
from envweave_gym.episode.record import FaultCount
from envweave_gym.episode.stream import Request, fault_event
from envweave_gym.remote.served import CALL_DEADLINE, LOSSES, ServedEnvironment, Spaces
from envweave_gym.wrappers.narrator import Infos, Narrator


class RemoteGame:
    """What both kinds share; they behave as the same game does in this process, seeds and errors included.

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
        self._narrator, self._faults = Narrator(self, self.name), FaultCount(self.name)
        self._spaces = Spaces(self._served)
        self.render_mode = kwargs.get("render_mode")
        self._begin()

    def _begin(self) -> None:
        self._agents: list[str] = []
        self._seen: dict[str, Any] = {}
        self._requests: tuple[Request, ...] = ()
        self._seq, self._turn = -1, 0
        self._broken: Fault | None = None

    # What the server says of it

    @property
    def description(self) -> dict[str, Any]:
        """What the server says of the game."""
        return self._served.description

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the game."""
        return self.description["metadata"]

    @property
    def possible_agents(self) -> list[str]:
        """All agents there may be."""
        return list(self.description["agents"])

    def observation_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` observes."""
        return self._space("observation_space", agent)

    def action_space(self, agent: str) -> Space[Any]:
        """The space of what ``agent`` may do."""
        return self._space("action_space", agent)

    def _space(self, which: str, agent: str) -> Space[Any]:
        self._narrator.check_agent(self, agent)
        return self._spaces.of(self.description["agents"][agent], which, agent)

    # What is asked of the session

    @property
    def agents(self) -> list[str]:
        """The agents that have not left; none before the first reset, and after a failure."""
        return self._agents if self._narrator.live else []

    def render(self) -> Any:
        """What the game draws; of a lost episode what it drew last."""
        self._narrator.check_begun("render")
        return self._served.picture()

    def state(self) -> Any:
        """PettingZoo's global view, where the game has one."""
        if self.description["has_state"]:
            return self._served.ask("global_state")
        name = self.metadata.get("name", self._served.name)
        raise NotImplementedError(f"state() method has not been implemented in the environment {name}.")

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives; of a lost episode only the counters are left."""
        episode = {"episode": self._narrator.episode}
        known = episode | {"step_count": self._turn}
        return known if self._served.gone else {**self._served.recall("state", known), **episode}

    @property
    def ledger(self) -> Ledger:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        ledger = Ledger()
        ledger.turn, told = self._served.ask("ledger")
        ledger.events.extend(told.events)
        return ledger

    def parse_action(self, text: str, agent: str | None = None) -> Any:
        """The action that ``text`` means; where the game is lost, any action, for the step that says so."""
        if not self.description["parses"]:
            return read_action(self.action_space(str(agent)), text)
        if self._broken is None:
            try:
                return self._served.ask("parse_action", [text, agent])
            except LOSSES as error:
                if not self.agents:
                    raise
                self._broken = self._tried(self._served.lost, error)
        return placeholder(self.action_space(str(agent)))

    def close(self) -> None:
        """Close the session."""
        self._served.close()
        self._agents = []

    # Inside

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset: the reply of the server, or the fault that the reset was lost to."""
        self._served.is_drawn = seed is None
        outcome = self._narrator.reset(self._served, seed, options)
        self._begin()
        return self._counted(outcome)

    def _tried(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """What a call gives; where it raises and that is no refusal, the episode is over."""
        return self._counted(self._narrator.play(call, argument))

    def _counted(self, outcome: Any) -> Any:
        """The outcome; if it is a fault, count it."""
        if isinstance(outcome, Fault):
            try:
                self._faults.add(outcome)
            except FaultStorm:
                self._agents = []
                raise
        return outcome

    def _note(self, info: dict[str, Any]) -> None:
        """Remember who has not left, and who must act."""
        self._requests, self._seq = info["stream"].requests, info["seq"]
        if self._requests:
            self._turn = self._requests[0].turn

    def _lost_reset(self, fault: Fault, asked: list[str]) -> Infos:
        """Everybody is there, sees nothing, and is told of the fault; whatever they do, it is over then."""
        narrator, self._agents, self._broken = self._narrator, self.possible_agents, fault
        narrator.ledger.adopt([fault_event(fault)])
        requests = narrator.requests(asked, over=False)
        infos = {agent: narrator.info({"fault": fault}, agent, requests, -1) for agent in self._agents}
        self._note(infos[asked[0]])
        return infos

    def _last_seen(self, agent: str) -> Any:
        return self._seen[agent] if agent in self._seen else placeholder(self.observation_space(agent))

    def __reduce__(self) -> Any:
        return self._again, ()

    def __str__(self) -> str:
        return f"<{type(self).__name__}<{self._served.name} at {self._served.address.url}>>"

    __repr__ = __str__
