"""The vocabulary of the stream, and how it is read out of every kind of info."""

from __future__ import annotations

import copy
import enum
import math
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import DictInfoToList
from scripted_envs import Scripted

import envweave_gym
from envweave_gym import (
    Emitter,
    Event,
    EventKind,
    Fault,
    FaultKind,
    Request,
    RequestKind,
    RequestStream,
    Stream,
    message,
    messages_of,
    metrics,
    reveal,
    stream_of,
    trainable,
)
from envweave_gym.stream import AGENT, UNNUMBERED, Ledger, jsonable, number

LINE = "envweave/LineWorld-v0"


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 7


class Word(str, enum.Enum):  # noqa: UP042 - its str() is not its value
    HI = "hi"


class Count(int):
    pass


class Text(str):
    def __str__(self) -> str:
        return "something else"


EVENT = Event(3, EventKind.MESSAGE, "player_0", ("player_0",), {"role": "user", "content": "héllo"})
STREAM = Stream((Request(3, RequestKind.ACT, AGENT, 2),), (EVENT, Event(4, EventKind.METRICS)))


def kinds(stream: Stream) -> list[EventKind]:
    return [event.kind for event in stream.events]


# The structs


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
    ("struct", "field"), [(STREAM, "events"), (EVENT, "seq"), (STREAM.requests[0], "turn")]
)
def test_structs_are_frozen(struct: Any, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(struct, field, 0)


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
    told = [message("user", "a"), message("user", "b")]
    assert [event.seq for event in number(told, 5)] == [5, 6]
    assert [event.seq for event in number(told[:1], 9)] == [9]
    assert number([], 3) == ()
    assert [event.seq for event in told] == [UNNUMBERED, UNNUMBERED]


def test_a_ledger_numbers_and_hides() -> None:
    ledger = Ledger()
    ledger.write(EventKind.EPISODE_START, seed=3)
    ledger.adopt([reveal(("a",), card=1), message("user", "hi")])
    assert ledger.seq == 2
    assert [event.seq for event in ledger.since(-1, "b")] == [0, 2]
    assert [event.kind for event in ledger.since(0, "a")] == ["reveal", "message"]


def test_an_emitter_drops_what_nobody_asked_for() -> None:
    emitter = Emitter()
    emitter.tell(message("user", "too early"))
    assert list(emitter.take_events()) == []
    emitter.tell(message("user", "now"))
    assert [event.data["content"] for event in emitter.take_events()] == ["now"]
    assert list(emitter.take_events()) == []


def test_makers_of_events() -> None:
    assert message("user", "x").data == {"role": "user", "content": "x"}
    assert message("user", "x", agent="a", to=("a",), replace=True) == Event(
        UNNUMBERED, EventKind.MESSAGE, "a", ("a",), {"role": "user", "content": "x", "replace": True}
    )
    assert metrics(loss=np.float32(0.5), steps=np.int64(3)).data == {"loss": 0.5, "steps": 3}
    assert reveal(("a",), cards=np.array([1, 2])).data == {"cards": [1, 2]}
    assert type(message("user", np.str_("x")).data["content"]) is str


# JSON


DTYPES = [*"?bBhHiIlLqQefdgFDG", "S3", "U3", "M8[ns]", "M8[D]", "m8[s]"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_and_scalars_of_every_dtype_become_json(dtype: str) -> None:
    array = np.zeros((2, 1), dtype)
    for value in (array, array[0, 0], array[0]):
        plain = jsonable({"value": value})
        assert msgspec.json.decode(msgspec.json.encode(plain)) == plain
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain)) == plain
    assert np.shape(jsonable(array)) == (2, 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int8(-3), -3),
        (np.bool_(True), True),
        (np.str_("é"), "é"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(5), 5),
        (np.array([{"a": (1,)}, None], dtype=object), [{"a": [1]}, None]),
        (np.array([(1, 2.5)], dtype=[("a", int), ("b", float)]), [[1, 2.5]]),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({1: "a", None: "b", Word.HI: "c", np.int64(2): "d"}, {"1": "a", "None": "b", "hi": "c", "2": "d"}),
        (OrderedDict(a=np.int64(1)), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (b"ab", "b'ab'"),
        ({1}, "{1}"),
        (1 + 2j, "(1+2j)"),
        (Colour.RED, "red"),
        (Size.BIG, 7),
        (Word.HI, "hi"),
        (Text("plain"), "plain"),
        (Count(3), 3),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.array([1.0, np.nan]), [1.0, "nan"]),
        (2**63, 2**63),
        (2**64 - 1, 2**64 - 1),
        (2**64, hex(2**64)),
        (-(2**63) - 1, hex(-(2**63) - 1)),
        ("\ud800x", "\\ud800x"),
        ("𝄞", "𝄞"),
    ],
)
def test_whatever_an_action_holds_becomes_json(value: Any, expected: Any) -> None:
    plain = jsonable(value)
    assert plain == expected
    assert type(plain) is type(expected)
    for form in (msgspec.json, msgspec.msgpack):
        assert form.decode(form.encode(plain)) == plain


def test_what_stands_for_nan_and_for_huge_ints_is_read_back() -> None:
    assert math.isnan(float(jsonable(math.nan)))
    assert int(jsonable(-(2**100)), 0) == -(2**100)
    assert int(jsonable(10**5000), 0) == 10**5000


def test_json_of_objects_holds_no_address() -> None:
    assert jsonable(object()) == jsonable(object()) == "<object object>"


# Reading plain infos


def test_infos_without_a_stream() -> None:
    for info in ({}, {"x": 1}, {"episode": {"r": 1.0}}, {"a": {}, "b": {}}):
        assert stream_of(info) == Stream()
        assert messages_of(info) == []
        assert trainable(info) is True


def test_a_foreign_environment_has_an_empty_stream_and_trains() -> None:
    env = RecordEpisodeStatistics(gym.make("CartPole-v1", max_episode_steps=3))
    _, info = env.reset(seed=0)
    for _ in range(3):
        assert stream_of(info) == Stream()
        *_, info = env.step(0)
    assert set(info) == {"episode"}
    assert trainable(info) is True
    vector = SyncVectorEnv([lambda: gym.make("CartPole-v1", max_episode_steps=3)] * 2)
    _, infos = vector.reset(seed=0)
    assert trainable(infos) is True


def test_a_foreign_fault_key_is_no_fault() -> None:
    assert trainable({"stream": Stream(), "fault": 0}) is True
    assert trainable({"fault": "valve 3"}) is True


def test_a_fault_is_not_trained_on() -> None:
    fault = Fault(FaultKind.CRASH, "gone", True)
    assert trainable({"fault": fault}) is False
    assert trainable({"stream": Stream((), (Event(0, EventKind.FAULT),))}) is False


def test_a_reset_is_no_transition_and_a_step_is_one() -> None:
    env = gym.make(LINE)
    _, info = env.reset(seed=0)
    assert trainable(info) is False
    *_, info = env.step(0)
    assert trainable(info) is True


def test_messages_start_anew_where_the_history_does() -> None:
    old, new = message("user", "old"), message("user", "new", replace=True)
    info = {"stream": Stream((), (old, new, message("assistant", "last")))}
    assert [one["content"] for one in messages_of(info)] == ["new", "last"]
    assert messages_of(info)[0]["replace"] is True
    info = {"stream": Stream((), (old, Event(0, EventKind.EPISODE_START), message("user", "prompt")))}
    assert messages_of(info) == [{"role": "user", "content": "prompt"}]


def test_messages_are_the_readers_own() -> None:
    info = {"stream": Stream((), (message("user", "x"),))}
    messages_of(info)[0]["content"] = "changed"
    assert messages_of(info) == [{"role": "user", "content": "x"}]


# Reading games


def test_infos_of_a_game_are_read_by_agent() -> None:
    env = envweave_gym.make("envweave/KuhnPoker-v0")
    _, infos = env.reset(seed=0)
    streams = stream_of(infos)
    assert set(streams) == {"player_0", "player_1"}
    assert streams["player_0"].agents() == ("player_0",)
    assert messages_of(infos)["player_0"] == messages_of(infos, "player_0") == messages_of(infos["player_0"])
    *_, infos = env.step({"player_0": 0, "player_1": 0})
    assert trainable(infos)["player_1"] is False, "its action was ignored"
    assert kinds(stream_of(infos)["player_1"]).count(EventKind.IGNORED) == 1


def test_infos_of_a_game_hold_a_fault_of_one_agent() -> None:
    fault = Fault(FaultKind.LOST, "left", False)
    infos = {"a": {"stream": Stream(), "fault": fault}, "b": {"stream": Stream()}, "c": {}}
    assert trainable(infos) == {"a": False, "b": True, "c": True}
    assert stream_of(infos) == {"a": Stream(), "b": Stream(), "c": Stream()}


# Reading vectors


def one_line() -> gym.Env[Any, Any]:
    return gym.make(LINE, max_steps=5)


def vector(kind: str, mode: AutoresetMode, rows: int = 4) -> Any:
    if kind == "native":
        return gym.make_vec(LINE, num_envs=rows, max_steps=5, autoreset_mode=mode.value)
    if kind == "async":
        return AsyncVectorEnv([one_line] * rows, autoreset_mode=mode, context="forkserver")
    return SyncVectorEnv([one_line] * rows, autoreset_mode=mode)


@pytest.mark.parametrize("kind", ["sync", "async", "native"])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_streams_and_masks_of_vectors(kind: str, mode: AutoresetMode) -> None:
    envs = vector(kind, mode)
    try:
        _, infos = envs.reset(seed=3)
        assert [kinds(stream) for stream in stream_of(infos)] == [["episode_start"]] * 4
        assert trainable(infos).tolist() == [False] * 4
        assert messages_of(infos) == [[]] * 4
        over = np.zeros(4, bool)
        for _ in range(12):
            before = over
            _, _, terminated, truncated, infos = envs.step(np.ones(4, np.int64))
            over = terminated | truncated
            expect_rows(infos, mode, before, over)
            if mode is AutoresetMode.DISABLED and over.any():
                _, infos = envs.reset(options={"reset_mask": over.copy()})
                expect_partial_reset(infos, over)
                over = np.zeros(4, bool)
    finally:
        envs.close()


def expect_rows(infos: dict[str, Any], mode: AutoresetMode, before: Any, over: Any) -> None:
    streams, mask = stream_of(infos), trainable(infos)
    assert mask.dtype == np.bool_
    for row, stream in enumerate(streams):
        if mode is AutoresetMode.NEXT_STEP and before[row]:
            assert kinds(stream) == ["episode_start"]
            assert not mask[row]
            continue
        assert mask[row]
        assert kinds(stream)[:2] == ["act", "reward"]
        if over[row] and mode is AutoresetMode.SAME_STEP:
            assert kinds(stream)[2:] == ["episode_end", "episode_start"]
            assert stream.requests[0].kind == RequestKind.ACT
        elif over[row]:
            assert kinds(stream)[2:] == ["episode_end"]
            assert stream.requests[0].kind == RequestKind.RESET
        else:
            assert kinds(stream)[2:] == []
    if mode is AutoresetMode.SAME_STEP and over.any():
        final = infos["final_info"]
        assert [stream is not None for stream in stream_of(final)] == over.tolist()
        assert trainable(final).tolist() == [True] * 4
        assert {kinds(stream)[-1] for stream in stream_of(final) if stream} == {"episode_end"}


def expect_partial_reset(infos: dict[str, Any], mask: Any) -> None:
    assert [None if stream is None else kinds(stream) for stream in stream_of(infos)] == [
        ["episode_start"] if begun else None for begun in mask
    ]
    assert trainable(infos).tolist() == (~mask).tolist()
    assert messages_of(infos) == [[]] * 4


@pytest.mark.parametrize("kind", ["sync", "native"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_list_of_infos_is_read_as_the_vector_is(kind: str, mode: AutoresetMode) -> None:
    plain = vector(kind, mode)
    wrapped = DictInfoToList(vector(kind, mode))
    _, infos = plain.reset(seed=3)
    _, rows = wrapped.reset(seed=3)
    for _ in range(12):
        assert stream_of(rows) == stream_of(infos)
        assert trainable(rows).tolist() == trainable(infos).tolist()
        assert messages_of(rows) == messages_of(infos)
        assert [row["seq"] for row in rows] == infos["seq"].tolist()
        *_, infos = plain.step(np.ones(4, np.int64))
        *_, rows = wrapped.step(np.ones(4, np.int64))


def scripted(*steps: Any) -> Any:
    return lambda: RequestStream(Scripted(steps), on_fault="truncate", reset_deadline=0)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_one_faulty_environment_spoils_only_its_own_row(mode: AutoresetMode) -> None:
    rows = [scripted(1.0, 1.0), scripted(RuntimeError("boom"), 1.0), scripted(1.0, "end")]
    envs = AsyncVectorEnv(rows, autoreset_mode=mode, context="forkserver")
    try:
        envs.reset(seed=0)
        _, rewards, terminated, truncated, infos = envs.step(np.zeros(3, np.int64))
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        assert truncated.tolist() == [False, True, False]
        assert trainable(infos).tolist() == [True, False, True]
        lost = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
        assert lost["fault"][1] == Fault(FaultKind.CRASH, "RuntimeError: boom", True)
        assert lost["_fault"].tolist() == [False, True, False]
        assert EventKind.FAULT in kinds(stream_of(infos)[1])
        if mode is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": truncated})
        _, _, terminated, truncated, infos = envs.step(np.zeros(3, np.int64))
        assert terminated.tolist() == [False, False, True]
        assert trainable(infos).tolist() == [True, mode is not AutoresetMode.NEXT_STEP, True]
    finally:
        envs.close()


def test_a_reset_that_fails_in_the_same_step_does_not_spoil_the_episode_before() -> None:
    row = lambda: RequestStream(  # noqa: E731
        Scripted(["end"], [None, OSError("no room")]), on_fault="truncate", reset_deadline=0
    )
    envs = SyncVectorEnv([row], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    _, _, terminated, _, infos = envs.step(np.zeros(1, np.int64))
    assert terminated.tolist() == [True]
    assert isinstance(infos["fault"][0], Fault)
    assert trainable(infos).tolist() == [True]
    _, _, _, truncated, infos = envs.step(np.zeros(1, np.int64))
    assert truncated.tolist() == [True]
    assert trainable(infos).tolist() == [False]


def test_an_agent_of_a_game_is_not_told_the_seed_that_decides_what_is_hidden():
    start = Event(0, EventKind.EPISODE_START, None, None, {"seed": 7, "options": {"deal": "KQ"}})
    assert start.as_seen_by("player_0") == Event(0, EventKind.EPISODE_START)
    secret = Event(1, EventKind.REVEAL, None, ("player_0",), {"card": "K"})
    assert secret.as_seen_by("player_0") is secret
    assert secret.as_seen_by("player_1") is None


def test_infos_of_a_foreign_vector_do_not_say_how_many_rows_there_are() -> None:
    infos = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync").reset(seed=0)[1]
    assert trainable(infos) is True
    assert stream_of(infos) == Stream()
