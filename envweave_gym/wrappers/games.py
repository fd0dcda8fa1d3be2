"""The stream of PettingZoo environments: who must act, what happened, and only what each agent may see.

``infos[agent]`` holds ``stream`` (all open requests, and the events visible to the agent), ``seq`` (the number
of the last event) and ``active`` (whether the agent must act now), from the reset on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from envweave_gym.faults import InvalidAction, ResetNeeded
from envweave_gym.protocols import own_state
from envweave_gym.seeding import Seeds
from envweave_gym.spaces import membership
from envweave_gym.stream import Emitter, EventKind, Ledger, Request, RequestKind, Stream, jsonable


class _Narrator:
    """What both kinds of game share: the ledger of the episode, seeds, and checks of actions."""

    def __init__(self, core: Any, name: str | None) -> None:
        self.core = core
        self.name = name or str(core)
        self.seeds = Seeds(self.name)
        self.ledger = Ledger()
        self.episode = -1

    def begin(self, seed: int, options: dict[str, Any] | None) -> None:
        self.episode += 1
        self.ledger = Ledger()
        start: dict[str, Any] = {"seed": seed}
        if options:
            start["options"] = jsonable(options)
        self.ledger.write(EventKind.EPISODE_START, **start)
        self.adopt()

    def adopt(self) -> None:
        if isinstance(self.core, Emitter):
            self.ledger.adopt(self.core.take_events())

    def rewarded(self, rewards: dict[str, float]) -> None:
        for agent, reward in rewards.items():
            if reward:
                self.ledger.write(EventKind.REWARD, agent, to=(agent,), reward=float(reward))

    def ended(self, agent: str, terminated: bool, truncated: bool) -> None:
        self.ledger.write(EventKind.EPISODE_END, agent, terminated=bool(terminated), truncated=bool(truncated))

    def requests(self, asked: Iterable[str], over: bool) -> tuple[Request, ...]:
        seq, turn = self.ledger.seq, self.ledger.turn
        if over:
            return (Request(seq, RequestKind.RESET, None, turn),)
        return tuple(Request(seq, RequestKind.ACT, agent, turn) for agent in asked)

    def info(self, own: dict[str, Any], agent: str, requests: tuple[Request, ...], since: int) -> dict[str, Any]:
        stream = Stream(requests, self.ledger.since(since, agent))
        return {**own, "stream": stream, "seq": self.ledger.seq, "active": agent in stream.agents()}

    def check(self, env: Any, agent: str, action: Any) -> None:
        space = env.action_space(agent)
        if not membership(space)(action):
            given = repr(action)[:80]
            raise InvalidAction(f"{self.name}: action {given} of {agent} is not in {space}")

    def refuse(self, started: bool) -> ResetNeeded:
        when = "after the episode ended" if started else "before reset()"
        return ResetNeeded(f"{self.name}: step() was called {when}; call reset()")

    def state(self) -> dict[str, Any]:
        return {"episode": self.episode, "step_count": self.ledger.turn, **own_state(self.core)}


class AECStream(BaseWrapper[str, Any, Any]):
    """Gives an AEC environment its stream: an agent reads in ``infos`` all it may see since it acted last."""

    def __init__(self, env: AECEnv[str, Any, Any], *, name: str | None = None) -> None:
        """``name`` is what errors call the environment: its ID, where it has one."""
        super().__init__(env)
        self._narrator = _Narrator(env.unwrapped, name)
        self._acted_at: dict[str, int] = {}
        self._done: set[str] = set()
        self._infos: dict[str, dict[str, Any]] = {}

    @property
    def infos(self) -> dict[str, dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The environment's own infos with the stream."""
        return self._infos

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode."""
        chosen = self._narrator.seeds.next(seed)
        self.env.reset(seed=chosen, options=options)
        self._narrator.begin(chosen, options)
        self._acted_at, self._done = {}, set()
        self._refresh()

    def step(self, action: Any) -> None:
        """Let the selected agent act; one that is done takes ``None`` and leaves."""
        narrator = self._narrator
        if narrator.episode < 0 or not self.env.agents:
            raise narrator.refuse(started=narrator.episode >= 0)
        agent = self.env.agent_selection
        if agent in self._done:
            self._leave(agent, action)
            return
        narrator.check(self.env, agent, action)
        before = narrator.ledger.seq
        self.env.step(action)
        self._acted_at[agent] = before
        narrator.ledger.turn += 1
        narrator.ledger.write(EventKind.ACT, agent, action=jsonable(action))
        narrator.adopt()
        narrator.rewarded(self.env.rewards)
        self._note_ends()
        self._refresh()

    def _leave(self, agent: str, action: Any) -> None:
        if action is not None:
            raise InvalidAction(f"{self._narrator.name}: {agent} is done and takes no action but None")
        self.env.step(None)
        self._refresh()

    def _note_ends(self) -> None:
        for agent in self.env.agents:
            terminated, truncated = self.env.terminations[agent], self.env.truncations[agent]
            if (terminated or truncated) and agent not in self._done:
                self._done.add(agent)
                self._narrator.ended(agent, terminated, truncated)

    def _refresh(self) -> None:
        requests = self.requests()
        self._infos = {
            agent: self._narrator.info(own, agent, requests, self._acted_at.get(agent, -1))
            for agent, own in self.env.infos.items()
        }

    def requests(self) -> tuple[Request, ...]:
        """Who must answer now."""
        live = [agent for agent in self.env.agents if agent not in self._done]
        asked = [self.env.agent_selection] if live else []
        return self._narrator.requests([agent for agent in asked if agent in live], over=not live)

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return self._narrator.state()

    @property
    def ledger(self) -> Ledger:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        return self._narrator.ledger


class ParallelStream(BaseParallelWrapper[str, Any, Any]):
    """Gives a ParallelEnv its stream: every live agent is asked, and reads what it may see of the last step."""

    def __init__(self, env: ParallelEnv[str, Any, Any], *, name: str | None = None) -> None:
        """``name`` is what errors call the environment: its ID, where it has one."""
        super().__init__(env)
        self._narrator = _Narrator(env.unwrapped, name)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        chosen = self._narrator.seeds.next(seed)
        observations, infos = self.env.reset(seed=chosen, options=options)
        self._narrator.begin(chosen, options)
        return observations, self._with_stream(infos, -1)

    def step(self, actions: dict[str, Any]) -> Any:
        """Let every live agent act; actions of agents that are done are ignored and recorded."""
        narrator = self._narrator
        live = list(self.env.agents) if narrator.episode >= 0 else []
        if not live:
            if narrator.episode >= 0 and not actions:
                return {}, {}, {}, {}, {}
            raise narrator.refuse(started=narrator.episode >= 0)
        asked = asked_actions(narrator, self.env, live, actions)
        before = narrator.ledger.seq
        results = self.env.step(asked)
        ignored = {agent: action for agent, action in actions.items() if agent not in asked}
        record_actions(narrator, asked, ignored)
        narrator.ledger.turn += 1
        narrator.adopt()
        observations, rewards, terminations, truncations, infos = results
        narrator.rewarded(rewards)
        for agent in live:
            if terminations[agent] or truncations[agent]:
                narrator.ended(agent, terminations[agent], truncations[agent])
        return observations, rewards, terminations, truncations, self._with_stream(infos, before)

    def _with_stream(self, infos: dict[str, dict[str, Any]], since: int) -> dict[str, dict[str, Any]]:
        requests = self._narrator.requests(self.env.agents, over=not self.env.agents)
        return {agent: self._narrator.info(own, agent, requests, since) for agent, own in infos.items()}

    def stream_state(self) -> dict[str, Any]:
        """What :func:`envweave_gym.state_of` gives."""
        return self._narrator.state()

    @property
    def ledger(self) -> Ledger:
        """The numbered events of the episode: the operator's view, with everything hidden in it."""
        return self._narrator.ledger


def asked_actions(narrator: _Narrator, env: Any, asked: Iterable[str], actions: dict[str, Any]) -> dict[str, Any]:
    """The checked actions of those who were asked; one sentence about a missing or a foreign one."""
    strangers = [agent for agent in actions if agent not in env.possible_agents]
    if strangers:
        raise InvalidAction(f"{narrator.name}: {strangers[0]!r} is no agent; there are {env.possible_agents}")
    chosen: dict[str, Any] = {}
    for agent in asked:
        if agent not in actions:
            raise InvalidAction(f"{narrator.name}: {agent} was asked to act and no action of it was given")
        narrator.check(env, agent, actions[agent])
        chosen[agent] = actions[agent]
    return chosen


def record_actions(narrator: _Narrator, asked: dict[str, Any], ignored: dict[str, Any]) -> None:
    """Write what the agents did, and what those did who were not asked (for their eyes alone)."""
    for agent, action in asked.items():
        narrator.ledger.write(EventKind.ACT, agent, action=jsonable(action))
    for agent, action in ignored.items():
        narrator.ledger.write(EventKind.IGNORED, agent, to=(agent,), action=jsonable(action))
