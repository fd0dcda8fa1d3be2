"""The infos of rows, merged as Gymnasium's vectors merge them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from envweave_gym.episode.stream import Stream
from envweave_gym.episode.vector_infos import infos_of_rows

STREAM = Stream((), ())


def merged_by_gymnasium(rows: list[dict[str, Any] | None]) -> dict[str, Any]:
    infos: dict[str, Any] = {}
    gathers: Any = VectorEnv()
    gathers.num_envs = len(rows)
    for row, info in enumerate(rows):
        infos = gathers._add_info(infos, info or {}, row)
    return infos


@pytest.mark.parametrize(
    "rows",
    [
        [{"stream": STREAM, "seq": 1}, {"stream": STREAM, "seq": 2}],
        [{"n": 1, "x": 0.5, "b": True, "s": "a", "none": None}] * 3,
        [{"n": np.float32(1.5), "b": np.bool_(True)}, {"n": np.float32(2), "b": np.bool_(False)}],
        [{"n": np.int64(1)}, {"n": 1}],
        [{"n": 1}, {"n": 2.5}],
        [{"n": 1}, {"n": 2, "m": 3}],
        [{"n": 1}, None],
        [None, None],
        [{"list": [1, 2]}, {"list": [3, 4]}],
        [{"tuple": ()}, {"tuple": (1,)}],
        [{"array": np.arange(2)}, {"array": np.arange(2)}],
        [{"inner": {"n": 1}}, {"inner": {"n": 2}}],
        [{"final_obs": 1}, {"final_obs": 2}],
        [{"n": 1, "_n": 5}, {"n": 2, "_n": 6}],
        [{}, {}],
        [],
    ],
)
def test_rows_merge_as_in_gymnasium(rows: list[dict[str, Any] | None]) -> None:
    expected, infos = merged_by_gymnasium(rows), infos_of_rows(rows)
    assert list(infos) == list(expected)
    for key, column in expected.items():
        if isinstance(column, dict):
            assert infos[key].keys() == column.keys()
            continue
        assert (infos[key].dtype, infos[key].shape) == (column.dtype, column.shape)
        assert list(map(repr, infos[key])) == list(map(repr, column))


def test_an_integer_that_no_column_holds_is_refused_as_in_gymnasium() -> None:
    rows: list[dict[str, Any] | None] = [{"n": 1 << 70}]
    with pytest.raises(OverflowError):
        merged_by_gymnasium(rows)
    with pytest.raises(OverflowError):
        infos_of_rows(rows)
