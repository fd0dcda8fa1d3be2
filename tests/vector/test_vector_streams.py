"""The streams of a native vector are built when they are looked at, and are an array all the same."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from native_vectors import expect_equal

from envweave_gym import Stream, message, trainable
from envweave_gym.episode.lazy_streams import LazyStreams


def lazy(rows: int = 4) -> tuple[LazyStreams, list[int]]:
    built: list[int] = []

    def build(row: int) -> Stream:
        built.append(row)
        return Stream((), (message("user", str(row)),))

    return LazyStreams(build, np.arange(rows) == 1), built


def test_an_index_builds_one_stream() -> None:
    streams, built = lazy()
    assert streams[2].events[0].data["content"] == "2"
    assert streams[-1].events[0].data["content"] == "3"
    assert streams[np.int64(0)].events[0].data["content"] == "0"
    assert built == [2, 3, 0]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            streams[outside]


def test_what_needs_no_stream_builds_none() -> None:
    streams, built = lazy()
    assert (len(streams), streams.shape, streams.ndim, streams.dtype) == (4, (4,), 1, np.dtype(object))
    assert isinstance(streams, np.ndarray)
    assert isinstance(streams, LazyStreams)
    assert repr(streams) == str(streams) == "LazyStreams(4 streams)"
    assert trainable({"stream": streams}).tolist() == [True, False, True, True]
    assert built == []


def test_whatever_else_an_array_does_builds_all_of_them_once() -> None:
    streams, built = lazy()
    plain = np.array([lazy()[0][row] for row in range(4)] + [None], dtype=object)[:4]
    expect_equal(np.asarray(streams), plain)
    expect_equal(np.array(streams), plain)
    expect_equal(streams[1:3], plain[1:3])
    expect_equal(streams[np.array([True, False, False, True])], plain[[0, 3]])
    expect_equal(streams[[2, 0]], plain[[2, 0]])
    expect_equal(np.concatenate([streams, plain])[4:], plain)
    assert list(streams) == streams.tolist() == plain.tolist()
    assert streams.size == 4
    assert (streams == plain).tolist() == (plain == streams).tolist() == [True] * 4
    assert (streams != plain).tolist() == [False] * 4
    assert np.array_equal(streams, plain)
    assert streams[1] in streams
    assert built == [0, 1, 2, 3]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_of_streams_are_plain_arrays(duplicate: Any) -> None:
    streams, _ = lazy()
    again = duplicate(streams)
    assert type(again) is np.ndarray
    expect_equal(again, streams.eager())
    again[0] = None
    assert streams[0] is not None


def test_a_stream_can_be_replaced() -> None:
    streams, _ = lazy()
    streams[1] = None
    assert [stream is None for stream in streams] == [False, True, False, False]


def test_asking_for_what_no_array_has_is_an_attribute_error() -> None:
    streams, _ = lazy()
    assert not hasattr(streams, "no_such_thing")
    assert not hasattr(streams, "__no_such_protocol__")


def test_a_build_that_is_interrupted_leaves_nothing_half_built() -> None:
    streams, _ = lazy()
    source, streams.source = streams.source, interrupted
    with pytest.raises(KeyboardInterrupt):
        np.asarray(streams)
    streams.source = source
    assert [stream.events[0].data["content"] for stream in streams] == ["0", "1", "2", "3"]


def interrupted(row: int) -> Stream:
    if row == 2:
        raise KeyboardInterrupt
    return Stream()
