"""The streams of a native vector are built when they are read, and its infos suit Gymnasium's wrappers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from native_vectors import FIX, LINE, actions_of, expect_equal, native, sync

import envweave_gym as ew
from envweave_gym import Stream, message, trainable
from envweave_gym.episode.vector_infos import StreamRows, VectorInfos

duplicates = pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)


def lazy(rows: int = 4) -> tuple[StreamRows, list[int]]:
    built: list[int] = []

    def build(row: int) -> Stream:
        built.append(row)
        return Stream((), (message("user", str(row)),))

    return StreamRows(build, np.arange(rows) == 1), built


def test_an_index_builds_one_stream() -> None:
    streams, built = lazy()
    assert streams[2].events[0].data["content"] == "2"
    assert streams[-1].events[0].data["content"] == "3"
    assert streams[np.int64(0)].events[0].data["content"] == "0"
    assert built == [2, 3, 0]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            streams[outside]


def test_a_vector_builds_no_stream_until_it_is_read() -> None:
    streams, built = lazy()
    infos = VectorInfos(stream=streams, _stream=np.ones(4, np.bool_))
    assert len(streams) == 4
    assert isinstance(streams, Sequence)
    assert repr(streams) == "StreamRows(4 streams)"
    assert trainable(infos).tolist() == [True, False, True, True]
    assert list(infos) == ["stream", "_stream"]
    assert built == []


def test_reading_them_as_an_array_builds_all_of_them() -> None:
    streams, built = lazy()
    plain = np.array([lazy()[0][row] for row in range(4)] + [None], dtype=object)[:4]
    expect_equal(np.asarray(streams), plain)
    assert built == [0, 1, 2, 3]
    expect_equal(np.array(streams), plain)
    expect_equal(streams[1:3], plain[1:3])
    expect_equal(streams[np.array([True, False, False, True])], plain[[0, 3]])
    expect_equal(streams[[2, 0]], plain[[2, 0]])
    expect_equal(np.concatenate([streams, plain])[4:], plain)
    assert list(streams) == plain.tolist()
    assert streams == plain.tolist() == streams
    assert streams != plain.tolist()[1:]
    assert streams[1] in streams


@duplicates
def test_copies_of_streams_are_plain_arrays(duplicate: Any) -> None:
    streams, _ = lazy()
    again = duplicate(streams)
    assert type(again) is np.ndarray
    expect_equal(again, np.asarray(streams))
    again[0] = None
    assert streams[0] is not None


@duplicates
def test_copies_of_infos_are_plain_dicts_of_arrays(duplicate: Any) -> None:
    infos = native().reset(seed=3)[1]
    again = duplicate(infos)
    assert type(again) is dict
    assert type(again["stream"]) is np.ndarray
    expect_equal(again, infos)


class TestGymnasiumsWrappers:
    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    @pytest.mark.parametrize("backend", [None, "subprocess"])
    @pytest.mark.parametrize("env_id", [LINE, FIX, "envweave/Echo-v0"])
    def test_give_infos_as_lists(self, env_id: str, backend: str | None, mode: AutoresetMode) -> None:
        kwargs: dict[str, Any] = {"num_envs": 3, "autoreset_mode": mode.value, "max_steps": 3}
        plain, lists = (gym.make_vec(env_id, backend=backend, **kwargs) for _ in range(2))
        lists = DictInfoToList(lists)
        infos: list[Any] = [plain.reset(seed=3)[1], lists.reset(seed=3)[1]]
        for _ in range(7):
            assert ew.stream_of(infos[0]) == ew.stream_of(infos[1])
            assert ew.messages_of(infos[0]) == ew.messages_of(infos[1])
            assert trainable(infos[0]).tolist() == trainable(infos[1]).tolist()
            assert all(isinstance(one["stream"], Stream) for one in infos[1])
            actions = plain.action_space.sample()
            infos = [env.step(actions)[-1] for env in (plain, lists)]
        plain.close()
        lists.close()

    @pytest.mark.parametrize("backend", [None, "subprocess"])
    def test_count_episodes_and_leave_the_streams(self, backend: str | None) -> None:
        mine = RecordEpisodeStatistics(gym.make_vec(LINE, num_envs=5, max_steps=6, backend=backend))
        theirs = RecordEpisodeStatistics(sync())
        for env in (mine, theirs):
            env.reset(seed=3)
        for number in range(25):
            infos = [env.step(actions_of(mine, number))[-1] for env in (mine, theirs)]
            assert ew.stream_of(infos[0]) == ew.stream_of(infos[1])
            assert ("episode" in infos[0]) == ("episode" in infos[1])
            for key in "rl" if "episode" in infos[0] else "":
                expect_equal(infos[0]["episode"][key], infos[1]["episode"][key])
        assert mine.episode_count == theirs.episode_count > 0
        mine.close()
