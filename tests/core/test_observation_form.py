"""Which observations a vector can stack."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from envweave_gym.core.observation_form import stackable, wrong_observation
from envweave_gym.core.spaces import Unicode

PIXELS = Box(0, 255, (2, 2), np.uint8)
PAIR = Dict(seen=Box(-1, 1, (2,), np.float32), count=Discrete(3))


class OwnBox(Box):
    """A space that may be stacked in a way of its own."""


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (PIXELS, np.zeros((2, 2), np.uint8)),
        (PIXELS, np.zeros((2, 2), np.bool_)),
        (Box(-1, 1, (2,), np.float32), np.zeros(2, np.float64)),
        (Box(-1, 1, (2,), np.float32), [0, 1.5]),
        (Box(-1, 1, (), np.float32), 0.5),
        (Discrete(3), 7),
        (Discrete(3), np.int64(1)),
        (Discrete(3), np.array(1, np.int32)),
        (MultiBinary(2), np.zeros(2, np.int64)),
        (MultiDiscrete([2, 3]), [1, 2]),
        (PAIR, OrderedDict(seen=np.zeros(2), count=np.int32(1), more="ignored")),
        (Tuple((Discrete(2), Unicode())), (1, "text")),
    ],
)
def test_members_in_any_form_that_casts_are_taken(space: Space[Any], value: Any) -> None:
    fits = stackable(space)
    assert fits is not None
    assert fits(value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (PIXELS, np.zeros((2, 3), np.uint8)),
        (PIXELS, np.zeros((2, 2), np.int64)),
        (PIXELS, [[1, 2], [3]]),
        (PIXELS, None),
        (Box(-1, 1, (2,), np.float32), "ab"),
        (Box(-1, 1, (2,), np.float32), {"seen": 1}),
        (Discrete(3), np.array([1])),
        (Discrete(3), 1.5),
        (Discrete(3), 1 << 70),
        (Discrete(3), object()),
        (PAIR, {"seen": np.zeros(2)}),
        (PAIR, {"seen": np.zeros(3), "count": 1}),
        (PAIR, None),
        (PAIR, np.zeros(2)),
        (Tuple((Discrete(2), Discrete(2))), (1,)),
        (Tuple((Discrete(2), Discrete(2))), (1, 1, 1)),
    ],
)
def test_other_values_are_refused_and_named(space: Space[Any], value: Any) -> None:
    fits = stackable(space)
    assert fits is not None
    assert not fits(value)
    text = str(wrong_observation("some/Id-v0", "step", value, space))
    assert text.startswith("some/Id-v0: step() returned ")
    assert len(text) < 500
    assert "\n" not in text


@pytest.mark.parametrize("space", [Text(3), Unicode(), OwnBox(0, 1, (2,))])
def test_spaces_that_are_not_stacked_as_arrays_are_not_checked(space: Space[Any]) -> None:
    assert stackable(space) is None
