"""Checks that the requests and events in a single-agent environment's stream fit the calls and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.episode.stream import Event, EventKind, Request, RequestKind, Stream
from envweave_gym.testing.reproducibility_checks import SEED
from envweave_gym.testing.subject import ConformanceError, Subject
from envweave_gym.testing.traces import Moment, brief

EPISODES, LONGEST = 6, 40


def demand(holds: bool, where: str, rule: str, found: Any) -> None:
    """Raise :class:`ConformanceError` unless ``holds`` is true.

    Its text names the step (``where``), the ``rule`` that it breaks, and the value ``found``.
    """
    __tracebackhide__ = True
    if not holds:
        raise ConformanceError(f"{where}: {rule}, but there is {brief(found)}")


def check_stream_is_well_formed(subject: Subject) -> None:
    """Check events, their numbers and open requests at every reset and step, by the rules of ``episode.stream``."""
    form = subject.stack()
    with form.open(max_steps=LONGEST) as player:
        for seed in range(SEED, SEED + EPISODES):
            where = f"{form.label}, seed {seed}"
            moment = player.reset(seed)
            seq = _check_opening(where, moment, seed)
            turn = 0
            while not player.over:
                turn += 1
                moment = player.move()
                seq = _check_step(f"{where}, step {turn}", moment, seq, turn)


def stream_in(where: str, info: Mapping[str, Any]) -> Stream:
    """Return ``info["stream"]``; fail unless it is a ``Stream`` of JSON values and ``info["seq"]`` is an int.

    ``where`` names the step in the failure.
    """
    stream, seq = info.get("stream"), info.get("seq")
    demand(isinstance(stream, Stream), where, "info['stream'] is a Stream", stream)
    assert isinstance(stream, Stream)
    demand(type(seq) is int, where, "info['seq'] is an int", seq)
    _check_json(where, stream)
    return stream


def _check_json(where: str, stream: Stream) -> None:
    rule = "the stream comes back equal from JSON, so keep to JSON in the data of events"
    try:
        again = msgspec.json.decode(msgspec.json.encode(stream), type=Stream)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConformanceError(f"{where}: {rule}, but {error}: {brief(stream)}") from error
    demand(again == stream, where, rule, stream)


def _check_numbers(where: str, events: Sequence[Event], first: int, seq: int) -> None:
    numbers = [event.seq for event in events]
    rule = f"events are numbered one by one from {first} to info['seq']"
    demand(numbers == list(range(first, seq + 1)), where, rule, (numbers, seq))


def _check_opening(where: str, moment: Moment, seed: int) -> int:
    stream, seq = stream_in(where, moment.info), moment.info["seq"]
    events = stream.events
    _check_numbers(where, events, 0, seq)
    demand(events[0].kind == EventKind.EPISODE_START, where, "the first event is episode_start", events[0])
    demand(events[0].data.get("seed") == seed, where, f"episode_start names the seed {seed}", events[0].data)
    boundaries = (EventKind.EPISODE_START, EventKind.EPISODE_END)
    _only(where, events[1:], boundaries, "a reset starts one episode and ends none")
    _asks(where, stream, Request(seq, RequestKind.ACT, AGENT, 0))
    return seq


def _check_step(where: str, moment: Moment, before: int, turn: int) -> int:
    stream, seq = stream_in(where, moment.info), moment.info["seq"]
    events, over = stream.events, bool(moment.terminated or moment.truncated)
    _check_numbers(where, events, before + 1, seq)
    acts = [event.data for event in stream.of_kind(EventKind.ACT)]
    demand(acts == [{"action": jsonable(moment.acted)}], where, "one act event holds the action", acts)
    rewards = [event.data for event in stream.of_kind(EventKind.REWARD)]
    due = [{"reward": jsonable(float(moment.reward))}] if moment.reward else []
    demand(rewards == due, where, "one reward event holds the reward, none a reward of 0", rewards)
    _only(where, events, (EventKind.EPISODE_START,), "a step starts no episode")
    body = events[:-1] if over else events
    _only(where, body, (EventKind.EPISODE_END,), "episode_end comes last, and only at the end")
    if over:
        end = {"terminated": bool(moment.terminated), "truncated": bool(moment.truncated)}
        rule = "the last event is episode_end with how it ended"
        demand(events[-1].kind == EventKind.EPISODE_END and events[-1].data == end, where, rule, events[-1])
    expected = (RequestKind.RESET, None) if over else (RequestKind.ACT, AGENT)
    _asks(where, stream, Request(seq, *expected, turn))
    return seq


def _only(where: str, events: Sequence[Event], forbidden: tuple[EventKind, ...], rule: str) -> None:
    found = [event for event in events if event.kind in forbidden]
    demand(not found, where, rule, found)


def _asks(where: str, stream: Stream, request: Request) -> None:
    demand(stream.requests == (request,), where, f"the one open request is {request}", stream.requests)
