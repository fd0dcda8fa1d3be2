"""The streams of a single environment, built when somebody looks: each function is a stream's ``late``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.core.faults import Fault
from envweave_gym.episode.losses import end_event, fault_event
from envweave_gym.episode.stream import (
    AGENT,
    UNNUMBERED,
    Event,
    EventKind,
    Request,
    RequestKind,
    jsonable,
    number,
)

Built = tuple[tuple[Request, ...], tuple[Event, ...]]
"""What a stream holds: the open requests, and the events."""


def began(seed: int | None, options: dict[str, Any] | None, told: Sequence[Event]) -> Built:
    """What is told of a reset; ``options`` are JSON, and without a ``seed`` the generator went on."""
    start: dict[str, Any] = {"seed": seed, "options": options} if options else {"seed": seed}
    events = (Event(0, EventKind.EPISODE_START, None, None, start), *number(told, 1))
    return (Request(len(told), RequestKind.ACT, AGENT, 0),), events


def stepped(before: int, action: Any, told: Sequence[Event] | None, reward: float, turn: int) -> Built:
    """What is told of a step after event number ``before``; ``action`` is JSON."""
    events = _step(action, told, reward)
    return (Request(before + len(events), RequestKind.ACT, AGENT, turn),), number(events, before + 1)


def ended(
    before: int,
    action: Any,
    told: Sequence[Event] | None,
    reward: float,
    turn: int,
    terminated: bool,
    truncated: bool,
    fault: Fault | None,
) -> Built:
    """What is told of a step that ends the episode, perhaps as a fault that the environment itself found."""
    events = _step(action, told, reward)
    if fault is not None:
        events.append(fault_event(fault))
    events.append(end_event(terminated, truncated))
    return (Request(before + len(events), RequestKind.RESET, None, turn),), number(events, before + 1)


def _step(action: Any, told: Sequence[Event] | None, reward: float) -> list[Event]:
    events = [Event(UNNUMBERED, EventKind.ACT, AGENT, None, {"action": action}), *(told or ())]
    if reward:
        events.append(Event(UNNUMBERED, EventKind.REWARD, AGENT, None, {"reward": jsonable(reward)}))
    return events
