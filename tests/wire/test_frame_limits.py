"""Frames that are cheap to send and dear to decode are refused undecoded; large batches travel."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from envweave_gym.episode.stream import Stream
from envweave_gym.episode.vector_infos import StreamRows, VectorInfos
from envweave_gym.wire import frame_limits
from envweave_gym.wire.frame_limits import (
    EXTENSION,
    MOST_VALUES,
    TooManyValues,
    check_call,
    check_reply,
)
from envweave_gym.wire.hash_collisions import OPAQUE, SMALL_FRAME
from envweave_gym.wire.messages import Answer, Create, Step, encode
from envweave_gym.wire.packed_streams import ROWS_APART
from envweave_gym.wire.values import (
    BIG_INT,
    COMPLEX,
    MOMENT,
    MOST_BITS,
    NATIVE,
    PAIRS,
    RESULT,
    SET,
    STREAM,
    TUPLE,
    NotEncodable,
    dumps,
    fits,
    loads,
    pack,
    pack_exactly,
)

ROWS = 65_536
MANY = MOST_VALUES + 1
_encode = msgspec.msgpack.Encoder().encode


def packed_list(value: bytes, size: int = MANY) -> bytes:
    return b"\xdd" + struct.pack(">I", size) + value * size


def extension(code: int, data: bytes) -> bytes:
    return _encode(Ext(code, data))


def skipped(value: bytes) -> bytes:
    """A stream with a field that is unknown, which the decoder does not read."""
    return extension(STREAM, b"\x83\xa8requests\x90\xa6events\x90\xa7unknown" + value)


NUMBERS = list(zip(range(0xCA, 0xD4), [4, 8, 1, 2, 4, 8, 1, 2, 4, 8], strict=True))
"""The first byte of each form of a number, and the bytes that follow it."""
FULL = packed_list(b"\x80")
ARRAYS = packed_list(dumps(np.zeros(1, bool)), MANY // EXTENSION + 1)
HOSTILE = {
    "maps": FULL,
    "lists": packed_list(b"\x90"),
    "nothing": packed_list(b"\xc0"),
    "maps with an entry": packed_list(b"\x81\x00\x00", MANY // 3),
    "texts": packed_list(b"\xa2ab"),
    "longer texts": b"\x92" + packed_list(b"\xd9\x01a", MANY // 2) + packed_list(b"\xda\x00\x01a", MANY // 2),
    "bytes": packed_list(b"\xc4\x00"),
    "numbers": b"\x9a"
    + b"".join(packed_list(bytes([head, *range(size)]), MANY // 10) for head, size in NUMBERS),
    "lists in lists": b"\x91\xdc\x00\x02" * 900 + FULL,
    "maps of 16 keys": packed_list(b"\xde\x00\x10" + b"\xa1a\xc0" * 16, MANY // 33 + 1),
    "arrays": ARRAYS,
    "tuples": packed_list(b"\xd4\x03\x90", MANY // 5 + 1),
    "sets": packed_list(dumps(set()), MANY // 7 + 1),
    "in a tuple": extension(TUPLE, FULL),
    "in tuples in tuples": extension(TUPLE, b"\x91" + extension(TUPLE, b"\x91" + extension(TUPLE, FULL))),
    "many in tuples": packed_list(extension(TUPLE, packed_list(b"\x80", 1000)), MANY // 1000),
    "in a set": extension(SET, b"\x92\xc2" + FULL),
    "in pairs": extension(PAIRS, b"\x91\x92\xa1a" + FULL),
    "in a stream": skipped(FULL),
    "after a part that ends too early": b"\x92" + skipped(extension(TUPLE, b"\xc6\x7f\xff\xff\xff")) + FULL,
    "after a part that ends too late": b"\x92"
    + skipped(extension(TUPLE, b"\xc9\x7f\xff\xff\xff\x03"))
    + FULL,
    "before the end that is missing": b"\x93" + extension(TUPLE, FULL) + b"\xd9",
    "streams of rows": extension(NATIVE, _encode((b"", b"", None, packed_list(b"\xc0"), None))),
    "rows apart": extension(ROWS_APART, _encode((bytes(MANY), None))),
    "a kind that there is not": extension(99, FULL),
}


@pytest.mark.parametrize("way", HOSTILE)
def test_values_are_bounded_wherever_they_are(way: str) -> None:
    with pytest.raises(TooManyValues, match="more than 1,048,576 values"):
        check_call(encode(Create("x", kwargs={"y": msgspec.Raw(HOSTILE[way])})))


def chats() -> list[Any]:
    message = {"role": "user", "content": "é" * 100}
    return [[message, message]] * ROWS


@pytest.mark.parametrize(
    "make",
    [
        lambda: ["a" * (row % 300) for row in range(ROWS)],
        chats,
        lambda: tuple((np.int64(row % 2), np.zeros(3)) for row in range(ROWS)),
        lambda: {"rows": [{"number": row, "text": "x", "flag": None} for row in range(ROWS)]},
        lambda: {"image": np.full((64, 256, 256, 3), 0x80, np.uint8), "position": np.zeros((ROWS, 17))},
        lambda: np.array([{"score": float(row)} for row in range(ROWS)], object),
        lambda: b"\x80" * (2 * MANY),
    ],
    ids=["texts", "chats", "pairs of a number and an array", "infos", "images", "objects", "bytes"],
)
def test_large_batches_travel(make: Callable[[], Any]) -> None:
    check_call(encode(Step(1, pack(make()))))


def test_as_many_values_as_are_allowed_travel_and_no_more() -> None:
    check_call(dumps([None] * (MOST_VALUES - 1)))
    check_call(dumps(np.zeros(MANY)))
    with pytest.raises(TooManyValues):
        check_call(dumps([None] * MOST_VALUES))


def test_small_frames_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count(frame: bytes, most: int, **how: Any) -> bool:
        counted.append(len(frame))
        return False

    densest = packed_list(b"\xd4\x03\x90", (frame_limits._SMALL_CALL - 5) // 3)
    assert not frame_limits._exceeds(densest, MOST_VALUES, lazy_by_size=True)
    assert frame_limits._exceeds(densest, MOST_VALUES - 20, lazy_by_size=True)
    monkeypatch.setattr(frame_limits, "_exceeds", count)
    check_call(densest)
    assert len(densest) > SMALL_FRAME
    check_reply(FULL)
    assert counted == []
    check_call(FULL)
    assert counted == [len(FULL)]


def values_in(data: bytes | memoryview) -> int:
    """How the values in a frame count, found by decoding it."""
    waiting, count = [msgspec.msgpack.decode(data)], 0
    while waiting:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, Ext):
            count += EXTENSION - 1
            if value.code not in OPAQUE:
                waiting.append(msgspec.msgpack.decode(value.data))
    return count


plain = st.recursive(
    st.none()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.complex_numbers()
    | st.sampled_from([np.zeros(3), np.float32(2), "x" * 70_000, b"x" * 70_000, date(2020, 1, 1), "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=40)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers()), inner, max_size=20)
        | st.sets(st.integers() | st.text(), max_size=5)
    ),
    max_leaves=30,
)


@settings(max_examples=60, deadline=None)
@given(plain)
def test_the_count_is_that_of_the_decoder(value: Any) -> None:
    data = dumps(value)
    count = values_in(data)
    for frame in (data, np.frombuffer(data, np.uint8)):
        assert not frame_limits._exceeds(frame, count)
        assert frame_limits._exceeds(frame, count - 1)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_counted(noise: bytes, lazy: bool) -> None:
    assert frame_limits._exceeds(noise, 1 << 20, lazy_by_size=lazy) in (True, False)


def test_replies_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = encode(Answer(1, msgspec.Raw(FULL)))
    check_reply(frame)
    monkeypatch.setattr(frame_limits, "MOST_REPLY_VALUES", MOST_VALUES)
    monkeypatch.setattr(frame_limits, "SMALL_REPLY", 1000)
    with pytest.raises(TooManyValues):
        check_reply(frame)
    native = extension(NATIVE, _encode((bytes(MANY), b"", None, [bytes(MANY)], None)))
    check_reply(encode(Answer(1, msgspec.Raw(native))))  # bytes are arrays in these, which make no values


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 65_535, 65_536])
def test_streams_of_rows_arrive_and_those_of_more_rows_are_not_decoded(rows: int) -> None:
    streams: list[Stream | None] = [None] * rows
    known, seq = np.zeros(rows, np.bool_), np.zeros(rows, np.int64)
    infos = VectorInfos(stream=StreamRows(streams.__getitem__, known), _stream=known, seq=seq, _seq=known)
    assert list(loads(dumps(infos))["stream"]) == streams
    for wrong in (rows + 1, rows + 20, MOST_VALUES):
        packed = _encode((bytes(8 * rows), bytes(rows), None, _encode([None] * wrong), None))
        arrived = loads(extension(NATIVE, packed))["stream"]
        with pytest.raises(ValueError, match=f"not those of {rows} rows"):
            arrived.build(0)


# Extensions in extensions


def nested(code: int, before: bytes, inner: bytes, depth: int) -> bytes:
    for _ in range(depth):
        inner = extension(code, before + inner)
    return inner


@pytest.mark.parametrize(
    ("code", "before"), [(RESULT, b"\x91"), (COMPLEX, b"\x91"), (MOMENT, b"\x91"), (SET, b"\x92\xc2\x91")]
)
def test_extensions_in_extensions_are_read_without_copies(code: int, before: bytes) -> None:
    frame = nested(code, before, _encode(bytes(1 << 20)), 60)
    tracemalloc.start()
    try:
        with suppress(ValueError):
            loads(frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # they took 60 MB


@pytest.mark.parametrize("code", [TUPLE, RESULT, SET, PAIRS])
def test_extensions_that_nest_too_deep_are_refused(code: int) -> None:
    with pytest.raises((ValueError, RecursionError)):
        loads(nested(code, b"\x91", b"\x90", 20_000))


# Large integers


@pytest.mark.parametrize("value", [(1 << MOST_BITS) - 1, 1 - (1 << MOST_BITS), 1 << 64, -(1 << 63) - 1])
def test_integers_up_to_the_limit_travel(value: int) -> None:
    assert fits(value)
    assert loads(dumps([value, {value: (value,)}])) == [value, {value: (value,)}]


@pytest.mark.parametrize(
    "value", [1 << MOST_BITS, -(1 << MOST_BITS), 10**5000], ids=["least", "negative", "huge"]
)
def test_larger_integers_have_no_form_on_the_wire(value: int) -> None:
    for one in (value, [value], {"a": (value,)}, {value: 1}):
        with pytest.raises(
            NotEncodable, match=r"an integer of [\d,]+ bits cannot be sent; give one of at most 4,096"
        ):
            pack_exactly(one)
    assert loads(dumps({"a": value})) == {"a": hex(value)}  # as what has no form in an info


@pytest.mark.parametrize(
    "text", [b"0x1" + b"0" * 1024, b"-0x1" + b"0" * 1024, b"0x" + b"f" * 9000, b"0" * 2000]
)
def test_larger_integers_are_not_read(text: bytes) -> None:
    with pytest.raises(ValueError, match="integer of more than 4,096 bits"):
        loads(extension(BIG_INT, text))
