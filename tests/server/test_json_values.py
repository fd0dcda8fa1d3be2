"""Values of environments as JSON, and actions read out of it."""

from __future__ import annotations

import math
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

from envweave_gym import Fault, InvalidAction, Stream, Unicode
from envweave_gym.core.faults import FaultKind
from envweave_gym.core.spaces import Chat, Json
from envweave_gym_server.protocols.rest.json_values import Arrays, plain, read_json

SPACES = [
    Box(-1, 1, (2, 3)),
    Box(-np.inf, np.inf, (2,), np.float64),
    Box(0, 255, (4, 4, 3), np.uint8),
    Box(0, 1, ()),
    Discrete(4, start=-2),
    MultiDiscrete([3, 4]),
    MultiBinary([2, 2]),
    Text(5),
    Unicode(10),
    Json(),
    Chat(),
    Dict(a=Discrete(2), b=Tuple([Box(0, 1, ()), Unicode(3)])),
    Tuple([]),
    Dict({}),
    Sequence(Box(0, 1, (2,))),
    Sequence(Box(0, 1, (2,)), stack=True),
    Sequence(Discrete(3), stack=True),
    Graph(Box(0, 1, (2,)), Discrete(3)),
    Graph(Discrete(3), None),
    OneOf([Discrete(2), Box(0, 1, (2,))]),
]
MISFITS: list[Any] = [
    None,
    1.5,
    "x",
    True,
    10**400,
    math.inf,
    [[[[1]]]],
    [[1], [1, 2]],
    {"a": 1},
    {"dtype": "O", "shape": [1], "base64": "AA=="},
    {"dtype": "f4", "shape": [-1, -1], "base64": "AAAA"},
    {"dtype": "f4", "shape": [10**9, 10**9], "base64": ""},
    {"dtype": 7, "shape": [1], "base64": 3},
    {"dtype": "f4", "shape": [1], "base64": "not base64"},
    {"nodes": 1, "edges": 2, "edge_links": 3},
]


def sent(value: Any, arrays: Arrays = "lists") -> Any:
    return msgspec.json.decode(msgspec.json.encode(plain(value, arrays)))


@pytest.mark.parametrize("arrays", ["lists", "base64"])
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_members_come_back_from_json_as_members(space: Space[Any], arrays: Arrays):
    space.seed(1)
    for _ in range(20):
        member = space.sample()
        back = read_json("e", space, sent(member, arrays))
        assert space.contains(back)
        assert sent(back) == sent(member)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_whatever_is_no_member_is_refused_by_the_reader_or_by_the_space(space: Space[Any]):
    for misfit in MISFITS:
        try:
            read = read_json("e", space, misfit)
        except InvalidAction as error:
            said = str(error)
        else:
            said = "" if space.contains(read) and not _means(read, misfit) else "e: action "
        assert said.startswith("e: action ")
        assert len(said) < 500


def _means(read: Any, misfit: Any) -> bool:
    """Whether a value was taken for what it is: JSON and text spaces have some of these."""
    return sent(read) == sent(misfit)


@pytest.mark.parametrize("value", [256, -1, 1.5, 10**30])
def test_numbers_are_never_cut_to_fit(value: Any):
    with pytest.raises(InvalidAction, match=r"does not fit uint8|is not an array of numbers"):
        read_json("e", Box(0, 255, (1,), np.uint8), [value])


def test_an_object_has_exactly_the_members_of_its_space():
    space = Dict(delta=Discrete(3))
    assert read_json("e", space, {"delta": 1}) == {"delta": 1}
    with pytest.raises(InvalidAction, match="an object with delta"):
        read_json("e", space, {"delta": 1, "dleta": 2})


def test_arrays_are_lists_or_what_base64_says():
    array = np.array([[1, 2], [3, 4]], np.int16)
    assert plain(array) == [[1, 2], [3, 4]]
    assert plain(array, "base64") == {"dtype": "<i2", "shape": [2, 2], "base64": "AQACAAMABAA="}


def test_nan_and_huge_ints_have_a_form_in_json():
    odd = {
        "nan": math.nan,
        "matrix": np.array([[1.0, math.inf]]),
        "bytes": b"\0\1",
        "big": 1 << 70,
        1: (np.float32(0.5), np.bool_(True)),
        "texts": np.array(["a", "b"]),
        "rows": np.array([None, Stream()], dtype=object),
        "fault": Fault(FaultKind.CRASH, "it broke", retryable=True),
    }
    assert sent(odd) == {
        "nan": "nan",
        "matrix": [[1.0, "inf"]],
        "bytes": {"base64": "AAE="},
        "big": "0x400000000000000000",
        "1": [0.5, True],
        "texts": ["a", "b"],
        "rows": [None, {"requests": [], "events": []}],
        "fault": {"kind": "crash", "message": "it broke", "retryable": True},
    }
