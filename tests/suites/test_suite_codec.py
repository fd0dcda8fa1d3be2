"""The form in which values leave a suite: NumPy scalars of every kind, and infos without an end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from envweave_gym.suites.inside import codec
from envweave_gym.wire.values import loads

SCALARS = [
    *(np.bool_(True), np.int8(-3), np.uint64(2**64 - 1), np.float16(0.5), np.float32(0.1), np.float64(0.1)),
    *(np.complex64(1 + 2j), np.complex128(1 - 2j), np.str_(""), np.str_("left"), np.str_("right-most")),
    *(np.str_("123456"), np.str_("\u00e9\U0001f600 and more"), np.bytes_(b""), np.bytes_(b"ab")),
    *(np.bytes_(b"more than 16 bytes of it"), np.datetime64("2026-11-20T14:00"), np.timedelta64(3, "s")),
]


def arrived(packed: Any) -> Any:
    return loads(codec.encode(packed))


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: f"{value.dtype}-{value}")
@pytest.mark.parametrize("pack", [codec.exact, codec.readable])
def test_scalars_of_every_kind_arrive_as_they_are(value: Any, pack: Any):
    found = arrived(pack({"value": value}))["value"]
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert found == value


def test_scalars_of_long_doubles_arrive_as_doubles():
    found = arrived(codec.exact([np.longdouble(0.5), np.clongdouble(0.5j)]))
    assert found == [0.5, 0.5j]
    assert [type(one) for one in found] == [np.float64, np.complex128]


@pytest.mark.parametrize("pack", [codec.exact, codec.readable])
def test_arrays_arrive_as_they_are_also_after_others_of_their_kind(pack: Any):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = [
        *(whole, whole.T.copy(), whole[::2, ::3], whole[1:3, :2], np.asfortranarray(whole)),
        *(whole.astype(">f4"), np.array("a"), np.array(""), np.array(2.5), np.empty((0, 3), np.uint8)),
        *(np.array(["2026-11-20"], "M8[D]"), np.array([True, False])),
    ]
    for array in arrays * 2:
        found = arrived(pack({"value": array}))["value"]
        assert (found.dtype.kind, found.shape) == (array.dtype.kind, array.shape)
        assert found.tolist() == array.tolist()
    masked = np.ma.MaskedArray(whole, mask=whole > 3)
    with pytest.raises(codec.NotEncodable, match="masked"):
        codec.exact(masked)


def array_of(*items: Any) -> Any:
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array


def test_arrays_of_objects_arrive_and_those_without_an_end_become_texts():
    found = arrived(codec.exact(array_of(1, "two", array_of(3.0))))
    assert (found[:2].tolist(), found[2].tolist()) == ([1, "two"], [3.0])
    shared: Any = 0
    for _ in range(40):
        shared = array_of(shared, shared)
    cyclic = array_of(None)
    cyclic[0] = [cyclic]
    for value in (shared, cyclic):
        assert isinstance(arrived(codec.readable({"value": value}))["value"], np.ndarray)
        with pytest.raises(codec.NotEncodable, match="too many or too deep"):
            codec.exact(value)


class Unreadable(np.ndarray[Any, Any]):
    def ravel(self, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise ZeroDivisionError("not to be read")


def test_an_array_of_objects_that_cannot_be_read_becomes_a_text():
    value = array_of(1).view(Unreadable)
    assert arrived(codec.readable({"value": value}))["value"] == "<Unreadable of 1>"
    with pytest.raises(codec.NotEncodable, match="ZeroDivisionError"):
        codec.exact(value)
