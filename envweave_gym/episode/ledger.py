"""The numbered events of an episode with several agents, and who may see which of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envweave_gym.episode.stream import Event, EventKind, number


class Ledger:
    """Numbers the events of an episode and remembers who has seen them; shared by all multi-agent streams."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.turn = 0

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return len(self.events) - 1

    def write(
        self, kind: EventKind, agent: str | None = None, to: Sequence[str] | None = None, **data: Any
    ) -> None:
        """Append an event and number it."""
        seen = None if to is None else tuple(to)
        self.events.append(Event(len(self.events), kind, agent, seen, data))

    def adopt(self, events: Sequence[Event]) -> None:
        """Append events the environment wrote itself."""
        self.events.extend(number(events, len(self.events)))

    def since(self, seq: int, agent: str) -> tuple[Event, ...]:
        """The events after number ``seq``, as ``agent`` may see them."""
        seen = (event.as_seen_by(agent) for event in self.events[seq + 1 :])
        return tuple(event for event in seen if event is not None)
