"""The record of a game's episode, and the sentences that refuse misuse of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium.spaces import Space

from envweave_gym.core.actions import REFUSED, Admission, admission
from envweave_gym.core.arguments import check_options, check_reproducible
from envweave_gym.core.faults import REFUSALS, InvalidAction, InvalidArgument, ResetNeeded, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import no_agent, own_state
from envweave_gym.core.seeding import Seeds
from envweave_gym.episode.emitter import Emitter, drain
from envweave_gym.episode.ledger import Ledger
from envweave_gym.episode.stream import EventKind, Request, RequestKind, Stream

Infos = dict[str, dict[str, Any]]
ParallelStep = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], Infos]


class Narrator:
    """Keeps the record of an episode, and refuses misuse in one sentence: what both kinds of stream share."""

    def __init__(self, core: Any, name: str | None, reproducible: bool = True) -> None:
        """``reproducible=False`` hands resets without a seed on without one, all but the first."""
        self.core = core
        self.name = name or str(core)
        check_reproducible(self.name, reproducible)
        self.reproducible, self._goes_on = reproducible, False
        self.ledger = Ledger()
        self.episode = -1
        self._seeds = Seeds(self.name)
        self._lost = False
        self._admissions: dict[str, tuple[Space[Any], Admission]] = {}
        self._own_events()

    @property
    def live(self) -> bool:
        """Whether there is an episode: one was begun, and none of its calls has failed."""
        return self.episode >= 0 and not self._lost

    def reset(self, env: Any, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset ``env`` with a seed, given or drawn, or so that its generator goes on; begin the record."""
        check_options(self.name, options, getattr(self.core, "metadata", None) or {})
        chosen = None if seed is None and self._goes_on else self._seeds.next(seed)
        self._own_events()
        self._lost = True
        result = env.reset(seed=chosen, options=options)
        self.episode += 1
        self.ledger = Ledger()
        start: dict[str, Any] = {"seed": chosen}
        if options:
            start["options"] = jsonable(options)
        self.ledger.write(EventKind.EPISODE_START, **start)
        self.ledger.adopt(self._own_events())
        self._lost, self._goes_on = False, not self.reproducible
        return result

    def play(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``step``, which acts and reads the reply; an exception that is no refusal ends the episode."""
        try:
            return step(*arguments)
        except REFUSALS:
            raise
        except BaseException:
            self._lost = True
            raise

    def admit(self, env: Any, agent: str, action: Any) -> Any:
        """The JSON form of an action in the agent's space; masks are the environment's own affair."""
        space = env.action_space(agent)
        known = self._admissions.get(agent)
        if known is None or known[0] is not space:
            known = self._admissions[agent] = space, admission(space)
        admitted = known[1](action)
        if admitted is REFUSED:
            raise InvalidAction(f"{self.name}: action {shown(action)} of {agent} is not in {space}")
        return admitted

    def admit_all(self, env: Any, asked: Iterable[str], actions: Any) -> dict[str, Any]:
        """The JSON form of the actions of those who are asked; the others may be there or not."""
        if not isinstance(actions, Mapping):
            raise InvalidAction(f"{self.name}: step() takes a dict of actions by agent, not {shown(actions)}")
        known = getattr(env, "possible_agents", None) or env.agents
        for agent in actions:
            if agent not in known:
                raise InvalidAction(no_agent(self.name, agent, known))
        admitted: dict[str, Any] = {}
        for agent in asked:
            if agent not in actions:
                raise InvalidAction(f"{self.name}: {agent} must act, and there is no action of it; give one")
            admitted[agent] = self.admit(env, agent, actions[agent])
        return admitted

    def ignored(self, actions: Mapping[str, Any]) -> None:
        """Write down the actions of agents who were not asked, for their eyes alone."""
        for agent, action in actions.items():
            self.ledger.write(EventKind.IGNORED, agent, to=(agent,), action=jsonable(action))

    def acted(self, actions: Mapping[str, Any], rewards: Mapping[str, float]) -> None:
        """Write down a round: what the agents did, what the environment told, what they earned."""
        for agent, action in actions.items():
            self.ledger.write(EventKind.ACT, agent, action=action)
        self.ledger.turn += 1
        self.ledger.adopt(self._own_events())
        for agent, reward in rewards.items():
            if reward:
                self.ledger.write(EventKind.REWARD, agent, to=(agent,), reward=jsonable(float(reward)))

    def ended(self, agent: str, terminated: bool, truncated: bool) -> None:
        """Write down that the agent's part is over."""
        self.ledger.write(
            EventKind.EPISODE_END, agent, terminated=bool(terminated), truncated=bool(truncated)
        )

    def requests(self, asked: Iterable[str], *, over: bool) -> tuple[Request, ...]:
        """The open requests."""
        seq, turn = self.ledger.seq, self.ledger.turn
        if over:
            return (Request(seq, RequestKind.RESET, None, turn),)
        return tuple([Request(seq, RequestKind.ACT, agent, turn) for agent in asked])

    def info(
        self, own: Mapping[str, Any], agent: str, requests: tuple[Request, ...], since: int
    ) -> dict[str, Any]:
        """A fresh info of the agent, with the events after number ``since``."""
        stream = Stream(requests, self.ledger.since(since, agent))
        active = any(request.agent == agent for request in requests)
        return {**own, "stream": stream, "seq": self.ledger.seq, "active": active}

    def check_agent(self, env: Any, agent: Any) -> None:
        """Refuse an agent who does not play; a game that makes its agents as it goes answers for itself."""
        known = getattr(env, "possible_agents", None)
        if known is not None and agent not in known:
            raise InvalidArgument(no_agent(self.name, agent, known))

    def check_begun(self, call: str) -> None:
        """Refuse a call that needs an episode, before the first."""
        if self.episode < 0:
            raise self.refusal(call)

    def refusal(self, call: str = "step") -> ResetNeeded:
        """Why a call has to wait for a reset."""
        when = "before reset()" if self.episode < 0 else "after the episode ended"
        return ResetNeeded(f"{self.name}: {call}() was called {when}; call reset()")

    def no_step(self, actions: Any) -> ParallelStep:
        """A parallel step when nobody lives: nothing for nothing after the end, else a refusal."""
        if self.episode < 0 or not isinstance(actions, Mapping) or actions:
            raise self.refusal()
        return {}, {}, {}, {}, {}

    def state(self) -> dict[str, Any]:
        """The episode's number, the rounds played in it, and the environment's own fields."""
        counters = {"episode": self.episode, "step_count": self.ledger.turn}
        return {**counters, **own_state(self.core), **counters}

    def _own_events(self) -> Any:
        return drain(self.core.listen()) if isinstance(self.core, Emitter) else ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admissions": {}}
