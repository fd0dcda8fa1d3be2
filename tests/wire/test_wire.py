"""What is sent is what arrives: values, spaces and messages; and what is no message is refused."""

from __future__ import annotations

import math
from collections import OrderedDict
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
    Text,
    Tuple,
)
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import envweave_gym as ew
from envweave_gym.core.program_result import Result
from envweave_gym.core.spaces import Chat
from envweave_gym.episode.stream import stream_of
from envweave_gym.sandbox import Execution, Final, Variable
from envweave_gym.wire import messages
from envweave_gym.wire.messages import Create, Refused, Reset, Step, Stepped, encode, read_call, read_reply
from envweave_gym.wire.spaces import space_from_data, space_to_data
from envweave_gym.wire.values import dumps, loads, pack

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "<U3", "S4", "datetime64[s]", ">f4"),
]

HOSTILE = [
    b"M8[ns/0]",
    b"m8[s/0]",
    b"M8[0s]",
    b"m8[000s]",
    b"M8[100000s]",
    b"V8",
    b"O",
    b"f4,f4",
    b"(2,)f4",
    b"S99999999999",
    b"{}",
    b"\xff\xfe",
]
"""Names of dtypes that are not given to NumPy: some of them end the process."""

RECORDS = [
    ["enum", "enum", "Enum", [], []],
    ["enum", 5, "Enum", ["a"], [1]],
    ["enum", "enum", [], ["a"], [1]],
    ["tuple", "os", "stat_result", ["a"], []],
    ["dataclass", "os", "system", [["a"]], [1]],
    ["call", "os", "system", ["a"], [1]],
]
"""What is none of the records that travel."""
MOMENTS = [
    ["timedelta", [1 << 60, 0, 0]],
    ["timedelta", ["x"]],
    ["date", 5],
    ["date", "x"],
    ["month", "2026-11"],
]

SPACES = [
    Box(0, 255, (84, 84, 3), np.uint8),
    Box(-np.inf, np.inf, (), np.float64),
    Box(np.array([0.0, 1.0], np.float32), np.array([2.0, np.inf], np.float32)),
    Box(-1, 1, (0,)),
    Box(0, 1, (3,), np.bool_),
    Box(np.array([0, 1], np.int8), np.array([1, 1], np.int8), dtype=np.bool_),
    Discrete(3),
    Discrete(21, start=-10),
    MultiDiscrete([2, 3], start=[1, 2]),
    MultiDiscrete([[2, 3], [4, 5]]),
    MultiBinary(3),
    MultiBinary([2, 3]),
    Text(5),
    Text(5, min_length=0, charset="abc"),
    ew.Unicode(9, min_length=2),
    ew.Unicode(None),
    ew.Json(),
    ew.Json(None),
    Chat(99),
    Dict({"b": Discrete(2), "a": Dict({"c": Box(0, 1, (2,))})}),
    Dict({1: Discrete(2), "a": Discrete(3)}),
    Dict(OrderedDict([("z", Discrete(2)), ("a", Discrete(3))])),
    Tuple((Discrete(2), Text(3))),
    Sequence(Discrete(3)),
    Sequence(Box(0, 1, (2,)), stack=True),
    Graph(Box(0, 1, (2,)), Discrete(3)),
    Graph(Box(0, 1, (2,)), None),
    OneOf((Discrete(2), Box(0, 1, (2,)))),
]


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down; one NaN is as another."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        equal = one.dtype == other.dtype and one.shape == other.shape
        if one.dtype.hasobject:
            return equal and all(map(same, one.ravel().tolist(), other.ravel().tolist()))
        return equal and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


# Values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)])
def test_arrays_of_every_dtype_and_shape_arrive_writeable(dtype: str, shape: tuple[int, ...]):
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    arrived = loads(dumps(array))
    assert same(arrived, array)
    assert arrived.flags.writeable
    scalar = np.ones(1, dtype)[0]
    assert same(loads(dumps(scalar)), scalar)


@pytest.mark.parametrize(
    "array", [np.arange(12).reshape(3, 4).T, np.arange(10)[::2], np.asfortranarray(np.eye(3))]
)
def test_arrays_that_do_not_lie_in_order_arrive_right(array: Any):
    np.testing.assert_array_equal(loads(dumps(array)), array)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | hnp.arrays(st.sampled_from(["f4", "i8", "?"]), hnp.array_shapes(max_dims=2, max_side=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(plain)
def test_nested_values_arrive_with_their_types(value: Any):
    assert same(loads(dumps(value)), value)


def test_streams_faults_and_object_arrays_arrive():
    env = ew.make("envweave/CodeFix-v0", num_envs=3)
    _, infos = env.reset(seed=1)
    fault = ew.Fault(ew.FaultKind.LOST, "gone", True)
    value = {
        "stream": stream_of(infos)[0],
        "fault": fault,
        "few": np.array([None, fault, {"a": (1,)}], object),
    }
    assert same(loads(dumps(value)), value)
    assert list(loads(dumps(infos["stream"]))) == list(infos["stream"])


def test_results_of_programs_arrive():
    done = Execution(value=[1 << 100], final=Final("1.5", 1.5), variables={"x": Variable("int", "1")})
    assert loads(dumps({"result": done})) == {"result": done}
    assert loads(dumps(Result(value=1))) == Result(value=1)


def test_keys_of_any_kind_and_huge_ints_arrive():
    value = {("a", 1): 2, np.int64(3): 4, "x": 1 << 4000, None: -(1 << 70), np.str_("y"): 5, 1 << 70: 6}
    assert same(loads(dumps(value)), value)


def test_a_value_without_a_wire_form_arrives_as_its_repr():
    assert loads(dumps({"a": range(1), "b": object})) == {"a": "range(0, 1)", "b": "<class 'object'>"}


# Spaces


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_arrive_equal_and_draw_the_same(space: Any):
    arrived = space_from_data(loads(dumps(space_to_data(space))))
    assert arrived == space
    assert type(arrived) is type(space)
    assert not isinstance(space, Dict) or list(arrived.spaces) == list(space.spaces)
    for one in (space, arrived):
        one.seed(7)
    for _ in range(3):
        mine, theirs = space.sample(), arrived.sample()
        assert data_equivalence(mine, theirs)
        assert data_equivalence(loads(dumps(mine)), mine)


def test_a_subclass_of_a_space_arrives_as_what_it_extends():
    class Small(ew.Json):
        pass

    assert space_from_data(loads(dumps(space_to_data(Small(50))))) == ew.Json(50)


def test_a_space_of_another_kind_is_refused_by_name():
    with pytest.raises(ew.NotAvailable, match="there is no space of type 'Odd'; there are Box"):
        space_from_data({"type": "Odd"})


# Messages


@pytest.mark.parametrize(
    "message",
    [
        Create("x/Y-v0", "vector", {"num_envs": 3}),
        Reset(1, 5, {"a": [1]}),
        Step(2, {"delta": np.int64(3)}),
        messages.Ask(-2, "state"),
        messages.Close(-3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_calls_arrive(message: Any):
    fields = {name: pack(value) for name, value in msgspec.structs.asdict(message).items()}
    assert read_call(encode(type(message)(**fields))) == message


def test_replies_arrive():
    stepped = Stepped(3, pack(np.arange(2)), 1.0, True, False, pack({"seq": 4}))
    arrived = read_reply(encode(stepped))
    assert isinstance(arrived, Stepped)
    assert same(arrived.observation, np.arange(2))
    assert arrived.info == {"seq": 4}
    refused = Refused(4, "Conflict", "no", 3)
    assert read_reply(encode(refused)) == refused


def frames() -> list[bytes]:
    array = msgspec.msgpack.Ext(1, b"\x03\x01\xff\xff\xff\x7f<f4")
    return [
        b"",
        b"\xc1",
        b"hello",
        dumps(["step"]),
        dumps(["dance", 1, 2]),
        dumps(["step", "one", 2]),
        encode(Step(1, array)),
        encode(Step(1, msgspec.msgpack.Ext(1, b"\x02\x00|O"))),
        encode(Step(1, msgspec.msgpack.Ext(99, b""))),
        *(encode(Step(1, msgspec.msgpack.Ext(1, bytes((len(name), 0)) + name))) for name in HOSTILE),
        encode(Step(1, msgspec.msgpack.Ext(7, b"zz"))),
        *(encode(Step(1, msgspec.msgpack.Ext(kind, dumps(5)))) for kind in (3, 4, 8, 12, 13, 14, 15, 16, 17)),
        *(encode(Step(1, msgspec.msgpack.Ext(17, dumps(record)))) for record in RECORDS),
        *(encode(Step(1, msgspec.msgpack.Ext(16, dumps(moment)))) for moment in MOMENTS),
        encode(Step(1, msgspec.msgpack.Ext(14, dumps([False, 5])))),
        encode(Step(1, msgspec.msgpack.Ext(15, dumps(["1", 2])))),
        encode(Step(1, msgspec.msgpack.Ext(15, dumps([10**400, 2])))),
        encode(Step(1, msgspec.msgpack.Ext(13, dumps([["execution"], {}])))),
        b"\x93\xa4step\x01" + b"\x91" * 100_000,
    ]


@pytest.mark.parametrize("frame", frames(), ids=range(len(frames())))
def test_an_invalid_message_is_refused_and_nothing_else_happens(frame: bytes):
    with pytest.raises((ValueError, RecursionError)):
        read_call(frame)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(noise: bytes):
    for frame in (noise, encode(Step(1, 5))[:7] + noise):
        try:
            read_call(frame)
        except (ValueError, RecursionError):
            continue
