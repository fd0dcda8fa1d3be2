"""Whatever an action or an event holds becomes JSON."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest

from envweave_gym.core.jsonable import jsonable


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


def test_forms_of_nan_and_huge_ints_are_read_back() -> None:
    assert math.isnan(float(jsonable(math.nan)))
    assert int(jsonable(-(2**100)), 0) == -(2**100)
    assert int(jsonable(10**5000), 0) == 10**5000


def test_json_of_objects_holds_no_address() -> None:
    assert jsonable(object()) == jsonable(object()) == "<object object>"
