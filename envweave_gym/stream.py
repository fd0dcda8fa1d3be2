"""Who must answer next, and what has happened: the stream every reset and step hands out in ``info["stream"]``.

Glossary:

- An *event* is something that happened. Events of one episode are numbered 0, 1, 2, …; ``episode_start`` is 0.
- A *request* says who must answer next: an agent must ``act``, or somebody must ``reset``. Its ``seq`` is the
  number of the last event before it, so ``(agent, seq)`` names a request and a late answer is recognised.
- ``turn`` counts the answers given so far in the episode; simultaneous requests share it.
- ``info["seq"]`` is the number of the last event, a plain int for replay buffers and logs.

Numbers only, no clocks and no random ids: two runs with the same seed hand out equal streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

AGENT = "agent"
"""The name of the only agent of a Gymnasium environment."""

UNNUMBERED = -1
"""``seq`` of an event an environment has written itself, before the stream wrapper numbers it."""


class RequestKind(StrEnum):
    """What is asked of somebody."""

    ACT = "act"
    """The agent must choose an action."""
    RESET = "reset"
    """The episode is over: whoever drives the environment must reset it."""


class EventKind(StrEnum):
    """What has happened."""

    EPISODE_START = "episode_start"
    """A new episode began; ``data``: ``seed`` and, where given, ``options``."""
    ACT = "act"
    """``agent`` acted; ``data``: ``action``."""
    IGNORED = "ignored"
    """``agent`` sent an action although it was not asked; nothing was done with it; ``data``: ``action``."""
    REWARD = "reward"
    """``agent`` got a reward other than 0; ``data``: ``reward``."""
    MESSAGE = "message"
    """A chat message; ``data``: ``role``, ``content`` and, where the history was rewritten, ``replace``."""
    REVEAL = "reveal"
    """Something hidden was shown to those in ``to``; ``data`` is the environment's own."""
    METRICS = "metrics"
    """Numbers a trainer should log; ``data``: name -> number."""
    TOOL_CALL = "tool_call"
    """A tool was called; ``data``: ``name``, ``arguments``."""
    TOOL_RESULT = "tool_result"
    """A tool answered; ``data``: ``name``, ``result`` or ``error``."""
    EPISODE_END = "episode_end"
    """The episode, or one agent's part in it, is over; ``data``: ``terminated``, ``truncated``."""
    FAULT = "fault"
    """The episode was lost, not played; ``data``: ``kind``, ``message``, ``retryable``."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """Somebody must answer next."""

    seq: int
    kind: RequestKind
    agent: str | None
    turn: int


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that happened; ``to`` names the agents who may see it (``None``: everybody), ``data`` is JSON."""

    seq: int
    kind: EventKind
    agent: str | None = None
    to: tuple[str, ...] | None = None
    data: dict[str, Any] = {}

    def visible_to(self, agent: str) -> bool:
        """Whether ``agent`` may see this event."""
        return self.to is None or agent in self.to


class Stream(msgspec.Struct, frozen=True, gc=False):
    """The requests now open and the events since the last answer. No length, no index: NumPy must not unpack it."""

    requests: tuple[Request, ...] = ()
    events: tuple[Event, ...] = ()

    def of_kind(self, kind: EventKind) -> tuple[Event, ...]:
        """The events of one kind."""
        return tuple(event for event in self.events if event.kind == kind)

    def agents(self) -> tuple[str, ...]:
        """The agents who must act now."""
        return tuple(r.agent for r in self.requests if r.kind == RequestKind.ACT and r.agent is not None)


def message(
    role: str, content: str, *, agent: str | None = None, to: tuple[str, ...] | None = None, replace: bool = False
) -> Event:
    """A chat message; ``replace=True`` says that the history starts anew with it."""
    data: dict[str, Any] = {"role": role, "content": content}
    if replace:
        data["replace"] = True
    return Event(UNNUMBERED, EventKind.MESSAGE, agent, to, data)


def metrics(**numbers: float) -> Event:
    """Numbers a trainer should log."""
    return Event(UNNUMBERED, EventKind.METRICS, None, None, numbers)


def reveal(to: tuple[str, ...], **data: Any) -> Event:
    """Something hidden, shown to the agents in ``to`` alone."""
    return Event(UNNUMBERED, EventKind.REVEAL, None, to, data)


class Emitter:
    """Mix-in for environments that have something to tell: ``self.tell(message("user", prompt))``.

    The stream wrapper takes the events after every reset and step, numbers them and hands them out. Until
    somebody has asked for events, what is told is dropped.
    """

    _told: list[Event] | None = None

    def tell(self, *events: Event) -> None:
        """Put events into the stream."""
        if self._told is not None:
            self._told.extend(events)

    def take_events(self) -> Sequence[Event]:
        """The events told since this was called last."""
        told, self._told = self._told, []
        return told or ()


def jsonable(value: Any) -> Any:
    """``value`` with NumPy scalars and arrays turned into plain Python; what JSON cannot hold becomes its ``repr``."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())  # bytes, dates and objects take another round
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    if isinstance(value, int | float | str):
        return type(value).__base__(value) if type(value).__base__ in _PLAIN else str(value)
    return repr(value)


_PLAIN = frozenset({bool, int, float, str})


def stream_of(info: Mapping[str, Any]) -> Any:
    """The stream in an ``info``, wherever it came from.

    A plain info gives its ``Stream`` (an empty one where there is none), a vector info a list with one
    ``Stream`` or ``None`` an environment, PettingZoo infos a dict of them by agent. In a vector row that ended
    and was reset in the same step (``final_info``), the last events of the old episode come first.
    """
    found = info.get("stream")
    if isinstance(found, Stream):
        return found
    if isinstance(found, np.ndarray) or "final_info" in info:
        return _vector_streams(info)
    if found is None and info and all(isinstance(value, Mapping) for value in info.values()):
        return {agent: stream_of(value) for agent, value in info.items()}
    return Stream()


def _vector_streams(info: Mapping[str, Any]) -> list[Stream | None]:
    current = list(info.get("stream", ()))
    final = info.get("final_info", {}).get("stream")
    if final is None:
        return current
    joined: list[Stream | None] = []
    for new, old in zip(current or [None] * len(final), final, strict=True):
        joined.append(new if old is None else _join(old, new))
    return joined


def _join(old: Stream, new: Stream | None) -> Stream:
    return old if new is None else Stream(new.requests, old.events + new.events)


def messages_of(info: Mapping[str, Any], agent: str | None = None) -> list[dict[str, Any]]:
    """The chat messages that are new in ``info`` (on reset: the whole prompt), as role/content dictionaries.

    Messages before one marked ``replace`` are left out: the history starts anew with it. ``agent`` picks one
    agent of PettingZoo infos.
    """
    stream = stream_of(info[agent] if agent is not None else info)
    new: list[dict[str, Any]] = []
    for event in stream.of_kind(EventKind.MESSAGE):
        if event.data.get("replace"):
            new.clear()
        new.append(event.data)
    return new


def trainable(infos: Mapping[str, Any]) -> Any:
    """What a trainer multiplies its loss with: False where a step was no transition of the agent's own making.

    That is on faults, on the reset row of next-step autoreset, and for an agent whose action was ignored. A
    vector info gives a boolean array, a plain info a bool, PettingZoo infos a dict of bools by agent.
    """
    found = infos.get("stream")
    if isinstance(found, LazyStreams):
        return found.trainable()
    if isinstance(found, np.ndarray) or "final_info" in infos:
        return _trainable_rows(infos)
    if found is None and infos and all(isinstance(value, Mapping) for value in infos.values()):
        return {agent: trainable(value) for agent, value in infos.items()}
    return "fault" not in infos and not _is_boundary(found)


def _trainable_rows(infos: Mapping[str, Any]) -> NDArray[np.bool_]:
    final = infos.get("final_info", {})
    ended = final.get("stream", infos.get("stream"))
    rows = infos.get("stream", ended)
    mask = np.array([row is None or not _is_boundary(row) for row in rows], dtype=np.bool_)
    if "final_info" in infos:
        mask |= np.asarray(infos.get("_final_info", [row is not None for row in ended]), dtype=np.bool_)
    for source in (infos, final):
        if "_fault" in source:
            mask &= ~source["_fault"]
    return mask


_BOUNDARY = frozenset({EventKind.EPISODE_START, EventKind.IGNORED, EventKind.FAULT})


def _is_boundary(stream: Stream | None) -> bool:
    return stream is not None and any(event.kind in _BOUNDARY for event in stream.events)


class LazyStreams(np.ndarray):
    """The streams of a native vector environment: an object array whose items are built when they are indexed.

    Building 1,024 streams a step would cost a hundred times the step itself, and a trainer looks at few.
    """

    _build: Callable[[int], Stream]
    _untrainable: NDArray[np.bool_]

    def __new__(cls, build: Callable[[int], Stream], untrainable: NDArray[np.bool_]) -> LazyStreams:
        """``build(i)`` gives the stream of row ``i``; ``untrainable`` marks rows that are no transition."""
        self = np.ndarray.__new__(cls, untrainable.shape, dtype=object)
        self._build = build
        self._untrainable = untrainable
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | np.integer):
            return self._build(range(len(self))[index])
        return self.eager()[index]

    def __iter__(self) -> Iterator[Stream]:
        return (self._build(i) for i in range(len(self)))

    def eager(self) -> NDArray[np.object_]:
        """A plain object array with every stream built."""
        built = np.empty(len(self), dtype=object)
        for i in range(len(self)):
            built[i] = self._build(i)
        return built

    def trainable(self) -> NDArray[np.bool_]:
        """The rows that are transitions."""
        return ~self._untrainable

    def tolist(self) -> list[Stream]:
        """All streams, as a list."""
        return list(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        eager = [x.eager() if isinstance(x, LazyStreams) else x for x in inputs]
        return getattr(ufunc, method)(*eager, **kwargs)

    def __reduce__(self) -> Any:
        return self.eager().__reduce__()

    def __copy__(self) -> NDArray[np.object_]:
        return self.eager()

    def __deepcopy__(self, memo: dict[int, Any]) -> NDArray[np.object_]:
        return self.eager()

    def __repr__(self) -> str:
        return f"LazyStreams({len(self)} streams)"

    __str__ = __repr__


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
        """The events after number ``seq`` that ``agent`` may see."""
        return tuple(event for event in self.events[seq + 1 :] if event.visible_to(agent))


def number(events: Sequence[Event], first: int) -> tuple[Event, ...]:
    """``events`` with consecutive numbers from ``first``."""
    if len(events) == 1:
        event = events[0]
        return (Event(first, event.kind, event.agent, event.to, event.data),)
    numbered = []
    for seq, event in enumerate(events, first):
        numbered.append(Event(seq, event.kind, event.agent, event.to, event.data))
    return tuple(numbered)
