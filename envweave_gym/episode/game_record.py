"""The state machine of an episode with several agents: events, the agents that see them, open requests.

The wrappers of games, their turn-based parallel form, and the client of games on a server all use it. It does no
I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from envweave_gym.core.call_results import no_finite_reward
from envweave_gym.core.faults import REFUSALS, Fault, FaultStorm
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.record import EpisodeState
from envweave_gym.episode.stream import (
    UNNUMBERED,
    Event,
    EventKind,
    Request,
    RequestKind,
    Stream,
    end_event,
    fault_event,
    number,
    start_event,
)

Infos = dict[str, dict[str, Any]]
"""Infos by agent."""
ParallelStep = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], Infos]
"""The result of a parallel step: observations, rewards, terminations, truncations, infos."""


class GameRecord(EpisodeState):
    """The record of the current episode of a game, which all its agents share.

    :attr:`events` also has the events that are hidden from some agents; :meth:`since` returns those that one agent may
    see. The events are also the journal of the episode: ``episode_start`` has the seed and the options, ``act`` and
    ``ignored`` the actions, ``reward`` the rewards, ``episode_end`` the flags of each agent.
    """

    def __init__(self, name: str = "") -> None:
        """Make a record without an episode; ``name`` is the name of the game in errors."""
        super().__init__(name)
        self.events: list[Event] = []
        """The events so far; in a remote game only those that the client itself has added."""
        self.failed = False
        """Whether an exception ended the episode, so that the state of its agents is unknown."""

    def abandon(self) -> None:
        """Give up the episode without an end event, because a reset begins or a call was interrupted."""
        self.failed, self.pending_fault = True, None

    def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the game; an exception that is not one of ``REFUSALS`` abandons the episode."""
        try:
            return call(*arguments)
        except REFUSALS:
            raise
        except BaseException:
            self.abandon()
            raise

    def began(self, seed: int | None, options: Any = None, emitted: Sequence[Event] = ()) -> None:
        """Record the start of an episode; ``seed=None`` means that the game goes on with its own generator."""
        self.begin()
        self._append([start_event(seed, options), *emitted])

    def acted(
        self, actions: Mapping[str, Any], rewards: Mapping[str, float], emitted: Sequence[Event] = ()
    ) -> None:
        """Record a round: actions as JSON, events that the game emitted, and rewards.

        Raise ``ValueError`` for a reward that is NaN or infinite.
        """
        self.turn += 1
        acts = [Event(UNNUMBERED, EventKind.ACT, who, None, {"action": one}) for who, one in actions.items()]
        paid = [
            Event(UNNUMBERED, EventKind.REWARD, agent, (agent,), {"reward": self._finite(agent, reward)})
            for agent, reward in rewards.items()
            if reward
        ]
        self._append([*acts, *emitted, *paid])

    def _finite(self, agent: str, reward: Any) -> float:
        if not isfinite(reward):
            raise no_finite_reward(self.name, reward, agent)
        return float(reward)

    def ignored(self, actions: Mapping[str, Any]) -> None:
        """Record actions of agents that had no request; each is visible to its agent alone."""
        self._append(_ignored(actions))

    def ended(self, agent: str, terminated: bool, truncated: bool) -> None:
        """Record that one agent's part in the game is over."""
        self._append([end_event(terminated, truncated, agent)])

    def _append(self, events: Sequence[Event]) -> None:
        self.events += number(events, self.seq + 1)
        self.seq += len(events)

    # Losses, which only clients of a server have

    def lost(
        self,
        fault: Fault,
        live: Iterable[str],
        *,
        acted: Mapping[str, Any] | None = None,
        ignored: Mapping[str, Any] | None = None,
    ) -> None:
        """Record that a fault, such as a dead server, has ended the game; the ``live`` agents are truncated.

        The fault may also be an earlier one, which happened outside of a step and is reported only now. ``acted``
        are the actions of this step, as JSON, of the agents that had to act; ``ignored`` are those of other agents.
        """
        if self.pending_fault is None:  # a pending fault was counted when it was found
            self._count(fault)
        self.pending_fault = None
        self.turn += bool(acted or ignored)  # a loss that is found outside of a step is no round
        acts = [
            Event(UNNUMBERED, EventKind.ACT, agent, None, {"action": action})
            for agent, action in (acted or {}).items()
        ]
        ends = [end_event(False, True, agent) for agent in live]
        self._append([*_ignored(ignored or {}), *acts, fault_event(fault), *ends])

    def lost_reset(self, fault: Fault, seed: int | None, options: Any = None) -> None:
        """Record a reset that failed; the next round reports the fault."""
        self.began(seed, options, [fault_event(fault)])
        self.lost_between_steps(fault)

    def lost_between_steps(self, fault: Fault) -> None:
        """End the game by a fault outside of a step; the next round reports the fault."""
        self._count(fault)
        self.pending_fault = fault

    def played(self) -> None:
        """Set the count of faults in a row to zero, as the game was played to its end."""
        self._faults.clear()

    def _count(self, fault: Fault) -> None:
        try:
            self._faults.add(fault)
        except FaultStorm:
            self.abandon()
            raise

    # Replies of a server, which has a record of its own

    def begin(self) -> None:
        """Start an episode whose events a server records."""
        self.episode += 1
        self.failed, self.pending_fault = False, None
        self.events, self.seq, self.turn = [], -1, 0

    def adopt(self, info: Mapping[str, Any]) -> None:
        """Take over the numbers of a reset or step from the info of any agent."""
        self.events, self.seq = [], info["seq"]
        requests = info["stream"].requests
        if requests:
            self.turn = requests[0].turn

    # The view of an agent

    def since(self, seq: int, agent: str) -> tuple[Event, ...]:
        """Return the events after number ``seq`` that ``agent`` may see."""
        # Counted from the end, since the events of a client do not begin with number 0.
        new = self.events[max(0, len(self.events) - (self.seq - seq)) :]
        seen = (event.as_seen_by(agent) for event in new)
        return tuple([event for event in seen if event is not None])

    def requests(self, agents: Iterable[str], *, over: bool) -> tuple[Request, ...]:
        """Return the open requests: ``agents`` must act, or if the game is ``over``, the caller must reset it."""
        if over:
            return (Request(self.seq, RequestKind.RESET, None, self.turn),)
        return tuple([Request(self.seq, RequestKind.ACT, agent, self.turn) for agent in agents])

    def info(
        self,
        own: Mapping[str, Any],
        agent: str,
        requests: tuple[Request, ...],
        since: int,
        unread: tuple[Event, ...] = (),
    ) -> dict[str, Any]:
        """Return a new info of an agent: the fields of ``own``, and the stream with the numbers.

        The stream has the ``requests``, the events ``unread``, and the agent's events after number ``since``.
        """
        stream = Stream(requests, unread + self.since(since, agent))
        active = agent in [request.agent for request in requests]
        return {**own, "stream": stream, "seq": self.seq, "active": active}

    # For the caller

    def check_begun(self, call: str) -> None:
        """Raise ``ResetNeeded`` if no episode has begun; ``call`` names the caller's method in the error."""
        if self.episode < 0:
            raise self.refusal(call)

    def step_after_end(self, actions: Any) -> ParallelStep:
        """Return the empty result of a parallel step after the end; raise ``ResetNeeded`` if it has actions."""
        if self.episode < 0 or not isinstance(actions, Mapping) or actions:
            raise self.refusal()
        return {}, {}, {}, {}, {}


def _ignored(actions: Mapping[str, Any]) -> list[Event]:
    return [
        Event(UNNUMBERED, EventKind.IGNORED, agent, (agent,), {"action": jsonable(action)})
        for agent, action in actions.items()
    ]
