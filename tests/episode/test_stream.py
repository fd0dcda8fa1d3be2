"""The vocabulary of the stream."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

import envweave_gym
from envweave_gym import Emitter, Event, EventKind, Request, Stream, message, metrics, reveal
from envweave_gym.core.protocols import AGENT
from envweave_gym.episode.emitter import drain
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import UNNUMBERED, RequestKind, number
from envweave_gym.wire.values import dumps, loads

EVENT = Event(3, EventKind.MESSAGE, "player_0", ("player_0",), {"role": "user", "content": "héllo"})
STREAM = Stream((Request(3, RequestKind.ACT, AGENT, 2),), (EVENT, Event(4, EventKind.METRICS)))


@pytest.mark.parametrize("form", [msgspec.json, msgspec.msgpack])
def test_a_stream_comes_back_equal_from_the_wire(form: Any) -> None:
    again = form.decode(form.encode(STREAM), type=Stream)
    assert again == STREAM
    assert isinstance(again.events[0].kind, EventKind)
    assert isinstance(again.requests[0].kind, RequestKind)


def test_a_stream_survives_pickle_and_deepcopy() -> None:
    assert pickle.loads(pickle.dumps(STREAM)) == STREAM
    assert copy.deepcopy(STREAM) == STREAM


@pytest.mark.parametrize(
    ("struct", "field"), [(EVENT, "seq"), (STREAM.requests[0], "turn"), (STREAM, "events")]
)
def test_structs_are_frozen(struct: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(struct, field, 0)


BUILT = Stream(
    (Request(6, RequestKind.ACT, AGENT, 2),),
    (
        Event(4, EventKind.ACT, AGENT, None, {"action": {"delta": 2}}),
        Event(5, EventKind.MESSAGE, None, None, {"role": "user", "content": "héllo"}),
        Event(6, EventKind.REWARD, AGENT, None, {"reward": 0.5}),
    ),
)


def stream_of_a_step() -> Stream:
    record = EpisodeRecord(seq=3, turn=1)
    return record.acted({"delta": 2}, 0.5, (message("user", "héllo"),))


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(copy.copy, id="copied"),
        pytest.param(copy.deepcopy, id="copied deeply"),
        pytest.param(lambda stream: pickle.loads(pickle.dumps(stream)), id="pickled"),
        pytest.param(lambda stream: msgspec.json.decode(msgspec.json.encode(stream), type=Stream), id="json"),
        pytest.param(lambda stream: loads(dumps(stream)), id="wire"),
    ],
)
def test_the_stream_of_a_step_stays_equal(look: Any) -> None:
    looked = look(stream_of_a_step())
    assert looked == BUILT
    assert looked.agents() == (AGENT,)
    assert repr(looked) == repr(BUILT)
    assert data_equivalence(stream_of_a_step(), BUILT)


def test_a_later_change_of_an_action_does_not_change_the_stream() -> None:
    env = envweave_gym.make("envweave/Counter-v0")
    env.reset(seed=0)
    action = {"delta": 1}
    *_, info = env.step(action)
    action["delta"] = 2
    assert info["stream"].events[0].data == {"action": {"delta": 1}}


def test_numpy_does_not_unpack_a_stream() -> None:
    assert not hasattr(Stream, "__len__")
    assert not hasattr(Stream, "__getitem__")
    assert not hasattr(Stream, "__iter__")
    assert np.array([STREAM, STREAM]).shape == (2,)
    assert np.asarray(STREAM).shape == ()


def test_events_without_data_do_not_share_it() -> None:
    first, second = Event(0, EventKind.METRICS), Event(1, EventKind.METRICS)
    first.data["x"] = 1
    assert second.data == {}


def test_every_kind_says_what_it_is_in_one_line() -> None:
    assert [str(kind) for kind in RequestKind] == ["act", "reset"]
    assert {"episode_start", "act", "reward", "message", "metrics", "tool_call", "tool_result"} <= set(
        EventKind
    )
    assert {"episode_end", "fault", "ignored", "reveal"} <= set(EventKind)


def test_a_stream_is_asked_for_kinds_and_for_who_acts() -> None:
    assert STREAM.of_kind(EventKind.MESSAGE) == (EVENT,)
    assert STREAM.agents() == (AGENT,)
    assert Stream((Request(9, RequestKind.RESET, None, 4),)).agents() == ()


def test_events_are_seen_by_those_they_name() -> None:
    assert EVENT.visible_to("player_0")
    assert not EVENT.visible_to("player_1")
    assert Event(0, EventKind.METRICS).visible_to("anybody")


def test_numbering_leaves_the_given_events_alone() -> None:
    reported = [message("user", "a"), message("user", "b")]
    assert [event.seq for event in number(reported, 5)] == [5, 6]
    assert [event.seq for event in number(reported[:1], 9)] == [9]
    assert number([], 3) == ()
    assert [event.seq for event in reported] == [UNNUMBERED, UNNUMBERED]


def test_events_come_in_the_order_in_which_they_were_emitted() -> None:
    emitter = Emitter().listen()
    reported = [message("user", str(i)) for i in range(6)]
    emitter.emit(reported[0])
    emitter.emit(*reported[1:3])
    emitter.emit()
    for one in reported[3:]:
        emitter.emit(one)
    assert list(drain(emitter)) == reported
    assert list(drain(emitter)) == []


def test_an_emitter_drops_events_before_a_listener_is_attached() -> None:
    emitter = Emitter()
    emitter.emit(message("user", "too early"))
    assert list(drain(emitter.listen())) == []
    emitter.emit(message("user", "now"))
    assert [event.data["content"] for event in drain(emitter)] == ["now"]
    assert list(drain(emitter.listen())) == []


def test_makers_of_events() -> None:
    assert metrics(loss=np.float32(0.5), steps=np.int64(3)).data == {"loss": 0.5, "steps": 3}
    assert reveal(("a",), cards=np.array([1, 2])).data == {"cards": [1, 2]}


def test_an_agent_of_a_game_does_not_see_the_seed():
    start = Event(0, EventKind.EPISODE_START, None, None, {"seed": 7, "options": {"deal": "KQ"}})
    assert start.as_seen_by("player_0") == Event(0, EventKind.EPISODE_START)
    secret = Event(1, EventKind.REVEAL, None, ("player_0",), {"card": "K"})
    assert secret.as_seen_by("player_0") is secret
    assert secret.as_seen_by("player_1") is None
