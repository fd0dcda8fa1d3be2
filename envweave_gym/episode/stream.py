"""The stream in the ``info`` of every reset and step: requests, events, and functions that read them.

- An *event* is something that happened. The events of an episode are numbered from 0, ``episode_start``.
- A *request* says that an agent must ``act``, or that the caller must ``reset``. Its ``seq`` is the number of
  the last event before it, so ``(agent, seq)`` identifies a request and a late answer is recognised.
- ``turn`` counts the steps or rounds of the episode so far; simultaneous requests share it.
- ``info["seq"]`` is the number of the last event, a plain int for replay buffers and logs.

A stream contains no times and no random IDs: two runs with the same seed give equal streams. The ``data`` of an
event is always JSON, see :func:`envweave_gym.core.jsonable.jsonable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from envweave_gym.core.faults import Fault, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.vector_infos import StreamRows

UNNUMBERED = -1
"""The ``seq`` of an event that has no number yet: the record of the episode gives it one."""


class RequestKind(StrEnum):
    """The kinds of requests."""

    ACT = "act"
    """The agent must choose an action."""
    RESET = "reset"
    """The episode is over: the caller must reset the environment."""


class EventKind(StrEnum):
    """The kinds of events, each with the content of its ``data``."""

    EPISODE_START = "episode_start"
    """A new episode began; ``data``: ``seed`` and, where given, ``options``."""
    ACT = "act"
    """``agent`` acted; ``data``: ``action``."""
    IGNORED = "ignored"
    """An action of ``agent`` had no effect: there was no request for it, or the episode was lost already;
    ``data``: ``action``."""
    REWARD = "reward"
    """``agent`` got a reward other than 0; ``data``: ``reward``."""
    MESSAGE = "message"
    """A chat message; ``data``: the fields of :class:`envweave_gym.episode.message.Message`, and beside them
    ``replace`` where the history starts anew, ``token_ids`` and ``logprobs``."""
    REVEAL = "reveal"
    """Something hidden was shown to the agents in ``to``; ``data`` is the environment's own."""
    METRICS = "metrics"
    """Numbers a trainer should log; ``data``: name -> number."""
    TOOL_CALL = "tool_call"
    """A tool was called; ``data``: ``name``, ``arguments``."""
    TOOL_RESULT = "tool_result"
    """A tool returned; ``data``: ``name``, ``result`` or ``error``."""
    EPISODE_END = "episode_end"
    """The episode, or one agent's part in it, is over; ``data``: ``terminated``, ``truncated``."""
    FAULT = "fault"
    """The episode was lost, not played; ``data``: ``kind``, ``message``, ``retryable``."""


# Looking up a member of an enum costs as much as making an event.
_START, _END, _METRICS = EventKind.EPISODE_START, EventKind.EPISODE_END, EventKind.METRICS


class Request(msgspec.Struct, frozen=True, gc=False):
    """An open request: ``agent`` must act; if it is ``None``, the caller must reset."""

    seq: int
    kind: RequestKind
    agent: str | None
    turn: int


class Event(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened in an episode.

    ``to`` lists the agents that may see the event (``None``: all); ``data`` is JSON.
    """

    seq: int
    kind: EventKind
    agent: str | None = None
    to: tuple[str, ...] | None = None
    data: dict[str, Any] = {}

    def visible_to(self, agent: str) -> bool:
        """Return whether ``agent`` may see this event."""
        return self.to is None or agent in self.to

    def as_seen_by(self, agent: str) -> Event | None:
        """Return the event as an agent of a game sees it: ``None`` if hidden, the start without its data.

        An agent that knew the seed and the options would know what is hidden from it.
        """
        if not self.visible_to(agent):
            return None
        if self.kind is EventKind.EPISODE_START:
            return Event(self.seq, self.kind, self.agent, self.to)
        return self


class Stream(msgspec.Struct, frozen=True, gc=False):
    """The open requests, and the events since the last step, in ``info["stream"]``.

    The class defines no ``__len__``, so that NumPy does not unpack a stream into an array.
    """

    requests: tuple[Request, ...] = ()
    events: tuple[Event, ...] = ()

    def of_kind(self, kind: EventKind) -> tuple[Event, ...]:
        """Return the events of one kind."""
        return tuple(event for event in self.events if event.kind == kind)

    def agents(self) -> tuple[str, ...]:
        """Return the agents that must act now."""
        return tuple(r.agent for r in self.requests if r.kind == RequestKind.ACT and r.agent is not None)


def metrics(**numbers: float) -> Event:
    """Return an event with named numbers that a trainer should log."""
    return Event(UNNUMBERED, _METRICS, None, None, jsonable(numbers))


def reveal(to: tuple[str, ...], **data: Any) -> Event:
    """Return an event that shows hidden ``data`` to the agents in ``to`` alone."""
    return Event(UNNUMBERED, EventKind.REVEAL, None, agents_in(to, "reveal"), jsonable(data))


def agents_in(to: Any, caller: str) -> tuple[str, ...]:
    """Return the agents that may see an event as a tuple; refuse a text, and name the ``caller``."""
    # A text would pass for a collection, and agents whose names it contains would see the event.
    if isinstance(to, str) or not isinstance(to, Iterable):
        raise InvalidArgument(f"{caller}(to={shown(to)}): give a tuple of agents, such as ('player_0',)")
    return tuple(to)


def start_event(seed: int | None, options: Any = None) -> Event:
    """Return the ``episode_start`` event, the number 0, whose data are the seed and the options of the reset."""
    data = {"seed": seed, "options": jsonable(options)} if options else {"seed": seed}
    return Event(0, _START, None, None, data)


def fault_event(fault: Fault, seq: int = UNNUMBERED) -> Event:
    """Return the ``fault`` event, whose data are the fields of the fault."""
    data = {"kind": str(fault.kind), "message": fault.message, "retryable": fault.retryable}
    return Event(seq, EventKind.FAULT, None, None, data)


def end_event(terminated: Any, truncated: Any, agent: str | None = None, seq: int = UNNUMBERED) -> Event:
    """Return the event that ends an episode, or the part of one agent in it."""
    return Event(seq, _END, agent, None, {"terminated": bool(terminated), "truncated": bool(truncated)})


def stream_of(info: Any) -> Any:
    """Return the stream in the infos of an environment, a vector or a game.

    A plain info gives its ``Stream``, or an empty one. A vector info, or the list that ``DictInfoToList``
    makes of it, gives a list with a ``Stream`` or ``None`` for each row. The infos of a vector without
    streams do not contain the number of rows, and give one empty ``Stream``. PettingZoo infos give a dict by
    agent. If a row ended and was reset in the same step (``final_info``), the last events of the old episode
    come first.
    """
    if isinstance(info, list | tuple):
        return [stream_of(one) for one in info]
    require_info(info)
    if is_by_agent(info):
        return {agent: stream_of(own) for agent, own in info.items()}
    current, final = info.get("stream"), final_of(info).get("stream")
    if isinstance(current, np.ndarray | StreamRows):
        old = [None] * len(current) if final is None else final
        return [_joined(one, new) for one, new in zip(old, current, strict=True)]
    return _joined(final, current) or Stream()


def require_info(info: Any) -> None:
    """Raise ``InvalidArgument`` unless ``info`` is a dict or like one."""
    if not hasattr(info, "get"):  # replay buffers return dict-like objects
        raise InvalidArgument(f"{shown(info)} is no info; give what reset() or step() returned last")


def final_of(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the infos of the episodes that ended, and whose rows were reset, in the same step."""
    final = info.get("final_info")
    return final if isinstance(final, Mapping) else {}


def _joined(old: Stream | None, new: Stream | None) -> Stream | None:
    if old is None or new is None:
        return new or old
    return Stream(new.requests, old.events + new.events)


def is_by_agent(info: Mapping[str, Any]) -> bool:
    """Return whether these are PettingZoo infos by agent; a plain info may have dicts as values too."""
    if "stream" in info or "final_info" in info or not all(isinstance(own, Mapping) for own in info.values()):
        return False
    return any("stream" in own or "trainable" in own for own in info.values())


def number(events: Sequence[Event], first: int) -> tuple[Event, ...]:
    """Return copies of ``events`` with consecutive numbers from ``first``."""
    if len(events) == 1:
        event = events[0]
        return (Event(first, event.kind, event.agent, event.to, event.data),)
    numbered = []
    for seq, event in enumerate(events, first):
        numbered.append(Event(seq, event.kind, event.agent, event.to, event.data))
    return tuple(numbered)
