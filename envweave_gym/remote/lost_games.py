"""How a game that was lost is written down for its agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from envweave_gym.core.faults import Fault
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.stream import (
    UNNUMBERED,
    Event,
    EventKind,
    Request,
    RequestKind,
    Stream,
    fault_event,
    number,
)
from envweave_gym.wrappers.narrator import Infos


def lost_round(
    fault: Fault, live: Iterable[str], *, acted: Mapping[str, Any], ignored: Mapping[str, Any]
) -> list[Event]:
    """The events of a round that lost the game: what was sent for it, the fault, and the end of ``live``.

    ``acted`` are the actions of those who were asked, as JSON; ``ignored`` those that nothing was done with.
    """
    events = [
        Event(UNNUMBERED, EventKind.IGNORED, agent, (agent,), {"action": jsonable(action)})
        for agent, action in ignored.items()
    ]
    events += [
        Event(UNNUMBERED, EventKind.ACT, agent, None, {"action": action}) for agent, action in acted.items()
    ]
    events.append(fault_event(fault))
    end = {"terminated": False, "truncated": True}
    events += [Event(UNNUMBERED, EventKind.EPISODE_END, agent, None, dict(end)) for agent in live]
    return events


def lost_infos(
    fault: Fault, live: list[str], events: list[Event], *, seq: int, turn: int, unread: Infos | None = None
) -> Infos:
    """What agents are told of a lost game: ``live`` all of ``events``, numbered after ``seq``.

    ``unread`` are infos that nobody has read yet: their events come first. Who was done before the loss is
    asked for nothing more, and has lost nothing.
    """
    unread, numbered = unread or {}, number(events, seq + 1)
    last = seq + len(numbered)
    requests = (Request(last, RequestKind.RESET, None, turn),)
    infos: Infos = {}
    for agent in {**unread, **dict.fromkeys(live)}:
        own = unread.get(agent, {})
        seen = own["stream"].events if own else ()
        if agent in live:
            own = {"fault": fault}
            seen = (*seen, *(event for event in numbered if event.visible_to(agent)))
        infos[agent] = {**own, "stream": Stream(requests, seen), "seq": last, "active": False}
    return infos
