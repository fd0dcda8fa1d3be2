"""The state machine of an episode with one agent: sequence numbers, turn, open request, faults.

Wrappers, remote environments and the server all use it, so an episode has the same stream wherever it is played. It
does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import Fault, FaultCount, ResetNeeded
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.episode.stream import (
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

# Looking up a member of an enum costs as much as making an event.
_ACT, _REWARD = EventKind.ACT, EventKind.REWARD
_ASK_ACT, _ASK_RESET = RequestKind.ACT, RequestKind.RESET


class EpisodeState:
    """Base of the episode records of one and of several agents: the numbers and faults of the episode."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.episode = -1
        """The number of the current episode, from 0; -1 before the first."""
        self.seq, self.turn = -1, 0
        """The number of the last event, and the count of steps or rounds that were played."""
        self.pending_fault: Fault | None = None
        """A fault that was found outside of a step, and that the next step reports; ``None`` if there is none."""
        self._faults = FaultCount(name)

    def counters(self) -> dict[str, int]:
        """Return the counters that :func:`envweave_gym.state_of` shows."""
        return {"episode": self.episode, "step_count": self.turn}

    def refusal(self, call: str = "step") -> ResetNeeded:
        """Return the exception for a call while no episode is running."""
        when = "before reset()" if self.episode < 0 else "after the episode ended"
        return ResetNeeded(f"{self.name}: {call}() was called {when}; call reset()")


class EpisodeRecord(EpisodeState):
    """The record of the current episode: each method records one transition and returns its stream or info.

    The journal of an episode is the events of all these streams, one after the other: ``episode_start`` has
    the seed and the options, ``act`` the actions, ``reward`` the rewards, ``episode_end`` the two flags.
    Recording, replaying or forking an episode takes no other state machine.
    """

    def __init__(self, name: str = "", *, seq: int = -1, turn: int = 0) -> None:
        """Make a record without an episode; ``name`` is the name of the environment in errors."""
        super().__init__(name)
        self.seq, self.turn = seq, turn
        self.live = False
        """Whether the agent may act."""

    def abandon(self) -> None:
        """Give up the episode without an end event, because a reset begins or a call was interrupted."""
        self.live, self.pending_fault = False, None

    def began(self, seed: int | None, options: Any = None, emitted: Sequence[Event] = ()) -> Stream:
        """Record the start of an episode; ``seed=None`` means that the environment goes on with its own generator."""
        self._begin()
        events = (start_event(seed, options),)
        if emitted:
            events += number(emitted, 1)
        self.seq, self.turn = len(emitted), 0
        return Stream((Request(self.seq, _ASK_ACT, AGENT, 0),), events)

    def acted(self, action: Any, reward: float, emitted: Sequence[Event] = ()) -> Stream:
        """Record a step after which the episode goes on, with a finite reward and the events of the environment."""
        # The hot path of every step, so events are built with their numbers, in a tuple.
        seq = self.seq + 1
        self.turn = turn = self.turn + 1
        events: tuple[Event, ...] = (Event(seq, _ACT, AGENT, None, {"action": action}),)
        if emitted:
            events += number(emitted, seq + 1)
            seq += len(emitted)
        if reward:
            seq += 1
            events += (Event(seq, _REWARD, AGENT, None, {"reward": reward}),)
        self.seq = seq
        return Stream((Request(seq, _ASK_ACT, AGENT, turn),), events)

    def ended(
        self,
        action: Any,
        reward: float,
        emitted: Sequence[Event],
        terminated: bool,
        truncated: bool,
        fault: Fault | None = None,
    ) -> Stream:
        """Record the last step; ``fault`` is given if the environment itself reports that the episode failed."""
        self._count(fault)
        return self._ended(self.acted(action, reward, emitted).events, fault, terminated, truncated)

    # Losses

    def lost(self, fault: Fault, action: Any, emitted: Sequence[Event] = ()) -> dict[str, Any]:
        """Record a step in which the episode was lost, and return its info, whose stream has no reward event."""
        self._count(fault)
        return self._lost(fault, EventKind.ACT, action, emitted)

    def lost_reset(
        self, fault: Fault, seed: int | None, options: Any = None, emitted: Sequence[Event] = ()
    ) -> dict[str, Any]:
        """Record a reset that failed, and return its info; the next step reports the fault."""
        stream = self.began(seed, options, [*emitted, fault_event(fault)])
        self.lost_between_steps(fault)
        return {"fault": fault, "stream": stream, "seq": self.seq}

    def lost_at_start(self, fault: Fault, seed: int | None) -> dict[str, Any]:
        """Record an episode that started and was lost in the same step, and return its info."""
        events = self.began(seed).events
        self._count(fault)
        stream = self._ended(events, fault, False, True)
        return {"fault": fault, "stream": stream, "seq": self.seq}

    def lost_between_steps(self, fault: Fault) -> None:
        """End the episode by a fault outside of a step; the next step calls :meth:`report_loss`."""
        self._count(fault)
        self.pending_fault = fault

    def report_loss(self, action: Any) -> dict[str, Any]:
        """Record the step that reports the pending fault, and return its info; the action is ignored."""
        assert self.pending_fault is not None
        return self._lost(self.pending_fault, EventKind.IGNORED, action, ())

    def _lost(self, fault: Fault, kind: EventKind, action: Any, emitted: Sequence[Event]) -> dict[str, Any]:
        self.turn += 1
        acted = Event(self.seq + 1, kind, AGENT, None, {"action": jsonable(action)})
        events = (acted, *number(emitted, self.seq + 2))
        self.seq += len(events)
        stream = self._ended(events, fault, False, True)
        return {"fault": fault, "stream": stream, "seq": self.seq}

    def _ended(
        self, events: tuple[Event, ...], fault: Fault | None, terminated: bool, truncated: bool
    ) -> Stream:
        """End the episode: return the stream of its last step, the ``events`` and those of the end."""
        self.pending_fault = None
        if fault is not None:
            self.seq += 1
            events += (fault_event(fault, self.seq),)
        self.seq += 1
        end = end_event(terminated, truncated, None, self.seq)
        return Stream((Request(self.seq, _ASK_RESET, None, self.turn),), (*events, end))

    def _count(self, fault: Fault | None) -> None:
        self.live = False
        if fault is None:
            self._faults.clear()
        else:
            self._faults.add(fault)

    # Replies of a server, which has a record of its own

    def adopt_reset(self, info: dict[str, Any]) -> None:
        """Set the numbers from the info of a reset that a server has recorded."""
        self._begin()
        self.adopt_step(info, is_over=False)
        fault = info.get("fault")
        if fault is not None:
            self.lost_between_steps(fault)

    def adopt_step(self, info: dict[str, Any], is_over: bool) -> None:
        """Set event number and turn from the info of a step that a server has recorded."""
        request = info["stream"].requests[0]
        self.seq, self.turn = request.seq, request.turn
        if is_over:
            self._count(info.get("fault"))

    def _begin(self) -> None:
        self.episode += 1
        self.live, self.pending_fault = True, None
