"""Streams, messages and masks, read out of every kind of info."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import DictInfoToList
from scripted_envs import Scripted

import envweave_gym
from envweave_gym import (
    Event,
    EventKind,
    Fault,
    FaultKind,
    InvalidArgument,
    Stream,
    message,
    messages_of,
    stream_of,
    trainable,
)
from envweave_gym.episode.stream import RequestKind
from envweave_gym.wrappers import RequestStream

LINE = "envweave/LineWorld-v0"


def kinds(stream: Stream) -> list[EventKind]:
    return [event.kind for event in stream.events]


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
    assert all(set(one) == {"role", "content"} for one in messages_of(info)), "an API knows no replace"
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


def test_infos_of_a_foreign_vector_do_not_say_how_many_rows_there_are() -> None:
    infos = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync").reset(seed=0)[1]
    assert trainable(infos) is True
    assert stream_of(infos) == Stream()


@pytest.mark.parametrize("nothing", [None, 3, "info", [None]])
def test_a_value_that_is_no_info_is_refused(nothing: Any) -> None:
    for read in (stream_of, messages_of, trainable):
        with pytest.raises(InvalidArgument, match="is no info; give what reset"):
            read(nothing)
