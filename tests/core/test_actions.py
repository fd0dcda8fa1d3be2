"""One pass decides whether an action is in its space, and what it is in JSON."""

from __future__ import annotations

import warnings
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Space,
    Text,
    Tuple,
)

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import Chat, Json, Unicode

SPACES: list[Space[Any]] = [
    Discrete(3),
    Discrete(4, start=-2),
    Discrete(2**40, start=2**41),
    Box(-1, 1, (2,), np.float32),
    Box(0, 255, (2, 2), np.uint8),
    Box(-np.inf, np.inf, (), np.float64),
    MultiBinary(3),
    MultiDiscrete([2, 3]),
    Text(5),
    Unicode(8),
    Unicode(8, min_length=2),
    Unicode(None),
    Json(100),
    Chat(200),
    Dict(),
    Dict(a=Discrete(2), b=Dict(c=Unicode(3), d=Box(0, 1, (1,), np.float32))),
    Tuple((Discrete(2), Unicode(4))),
    Sequence(Discrete(2)),
    Sequence(Box(0, 1, (2,), np.float32), stack=True),
    Graph(Box(0, 1, (2,), np.float32), Discrete(2)),
    OneOf((Discrete(2), Unicode(3))),
]
JUNK = [
    *(None, object(), "x", "\ud800", "héllo", "x" * 99, b"x", "", True, 0, 1, -1, -2, 3, 2**80, 0.5),
    *(float("nan"), [], {}, (), ("?",), [[1], [1, 2]], [None], (1, 2, 3), {1: 2}, {"a": 1}, set(), len),
    *(
        np.zeros(3),
        np.zeros(2, np.float32),
        np.zeros((2, 2)),
        np.array(["a"]),
        np.array(object()),
        np.array(1),
    ),
    *(np.int8(1), np.uint64(1), np.int64(2**41), np.float32(1), np.str_("xy"), np.bool_(True)),
    *(
        {"a": 0, "b": {"c": "x"}},
        {"a": 0, "b": {"c": "\ud800", "d": [1.0]}},
        {"a": 2, "b": {}},
        {"a": 0, "c": 0},
    ),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_members_are_admitted_as_their_json(space: Space[Any]) -> None:
    space.seed(0)
    admit = admission(space)
    for _ in range(50):
        action = space.sample()
        admitted = admit(action)
        assert admitted is not REFUSED
        assert admitted == jsonable(action)
        assert msgspec.json.decode(msgspec.json.encode(admitted)) == admitted


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_an_action_outside_the_space_is_refused(space: Space[Any]) -> None:
    admit = admission(space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Box warns of whatever it has to cast, before it says no
        for value in JUNK:
            try:
                fits = space.contains(value)
            except (TypeError, ValueError, OverflowError):
                fits = False
            assert (admit(value) is not REFUSED) == fits, value


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1), (np.int64(2), 2), (np.int8(0), 0), (np.array(1), 1), (True, 1)]
)
def test_choices_are_admitted_as_plain_ints(value: Any, expected: int) -> None:
    admitted = admission(Discrete(3))(value)
    assert type(admitted) is int
    assert admitted == expected


def test_texts_are_admitted_as_plain_texts() -> None:
    for value in (np.str_("é"), np.str_("e")):
        assert type(admission(Unicode(3))(value)) is str


def test_the_admitted_action_is_a_copy() -> None:
    action = {"a": np.array([0.0, 1.0], np.float32)}
    admitted = admission(Dict(a=Box(0, 1, (2,), np.float32)))(action)
    action["a"][:] = 1
    assert admitted == {"a": [0.0, 1.0]}
