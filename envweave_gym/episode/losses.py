"""How a lost episode is written down, and when there are too many of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from envweave_gym.core.faults import FAULTS_IN_A_ROW, Fault, FaultStorm
from envweave_gym.episode.stream import (
    AGENT,
    UNNUMBERED,
    Event,
    EventKind,
    Request,
    RequestKind,
    Stream,
    number,
)


class FaultCount:
    """Counts the episodes of one environment that were lost one after the other."""

    def __init__(self, name: str) -> None:
        self._name, self._in_a_row = name, 0

    def add(self, fault: Fault) -> Fault:
        """One more; too many raise :class:`FaultStorm`."""
        self._in_a_row += 1
        if self._in_a_row >= FAULTS_IN_A_ROW:
            raise FaultStorm(f"{self._name}: {self._in_a_row} faults in a row, the last: {fault.message}")
        return fault

    def clear(self) -> None:
        """An episode has come to its end."""
        self._in_a_row = 0


def lost_info(
    fault: Fault, kind: EventKind, action: Any, *, seq: int, turn: int, own: Iterable[Event] = ()
) -> dict[str, Any]:
    """The info of a step that lost its episode, after event ``seq``; ``action`` is JSON, ``own`` was told."""
    acted = Event(UNNUMBERED, kind, AGENT, None, {"action": action})
    events = number([acted, *own, fault_event(fault), end_event(False, True)], seq + 1)
    last = seq + len(events)
    stream = Stream((Request(last, RequestKind.RESET, None, turn),), events)
    return {"fault": fault, "stream": stream, "seq": last}


def lost_reset_info(fault: Fault, start: dict[str, Any], own: Iterable[Event] = ()) -> dict[str, Any]:
    """The info of a reset that could not be had; the next step truncates."""
    opening = Event(UNNUMBERED, EventKind.EPISODE_START, None, None, start)
    events = number([opening, *own, fault_event(fault)], 0)
    seq = len(events) - 1
    stream = Stream((Request(seq, RequestKind.ACT, AGENT, 0),), events)
    return {"fault": fault, "stream": stream, "seq": seq}


def fault_event(fault: Fault) -> Event:
    """The event that tells of a fault."""
    data = {"kind": str(fault.kind), "message": fault.message, "retryable": fault.retryable}
    return Event(UNNUMBERED, EventKind.FAULT, None, None, data)


def end_event(terminated: Any, truncated: Any) -> Event:
    """The event that ends an episode."""
    data = {"terminated": bool(terminated), "truncated": bool(truncated)}
    return Event(UNNUMBERED, EventKind.EPISODE_END, None, None, data)
