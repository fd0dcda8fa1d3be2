"""The streams of vectors on the wire: packed as they are, and decoded row by row when they are looked at.

Of a native vector the arrays travel that its streams are built from, and the events that its new episodes
open with. A reply holds all there is to know of its streams: reading them asks nobody.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Decoder, Encoder, Ext
from numpy.typing import NDArray

from envweave_gym.episode.lazy_streams import LazyStreams
from envweave_gym.episode.stream import _BOUNDARY, Event, Stream, jsonable
from envweave_gym.vector.calls import Bools
from envweave_gym.vector.native import NativeStreams, Steps
from envweave_gym.wire.values import NATIVE, STREAMS, pack, packs, unpack, unpacks

ROWS_APART = 100
"""A kind of extension beyond those of :mod:`envweave_gym.wire.values`."""

_encoder = Encoder()
_events = Encoder(enc_hook=jsonable)
_streams = Decoder(tuple[bytes, bytes])
_infos = Decoder(tuple[bytes, bytes, bytes | None, msgspec.Raw, dict[str, Any] | None], ext_hook=unpack)
_rows = Decoder(list[msgspec.Raw])
_one = Decoder(Stream | None)
_opening = Decoder(tuple[Event, ...])
_plain = Decoder()
_apart = Decoder(tuple[bytes, Any], ext_hook=unpack)


# Streams that are there


class GivenStreams:
    """The streams of the rows, ``None`` where a row has none."""

    def __init__(self, streams: list[Stream | None]) -> None:
        self.streams = streams

    def __call__(self, row: int) -> Stream | None:
        """The stream of a row."""
        return self.streams[row]


class PackedStreams:
    """The same as they came, each read when it is looked at."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._packed: list[msgspec.Raw] | None = None

    def __call__(self, row: int) -> Stream | None:
        """The stream of a row."""
        if self._packed is None:
            self._packed = _rows.decode(self._data)
        return _one.decode(self._packed[row])


def given_streams(streams: list[Stream | None]) -> LazyStreams:
    """The streams of rows in the form that costs least to send."""
    untrainable = np.zeros(len(streams), np.bool_)
    for row, stream in enumerate(streams):
        for event in () if stream is None else stream.events:
            if event.kind in _BOUNDARY:
                untrainable[row] = True
    return LazyStreams(GivenStreams(streams), untrainable)


# Streams of native vectors


class PackedNativeStreams:
    """The arrays of a :class:`NativeStreams` as they came, read when one of its streams is looked at."""

    def __init__(self, data: msgspec.Raw, reset: Bools) -> None:
        self._data, self._reset = data, reset
        self._streams: NativeStreams | None = None

    def __call__(self, row: int) -> Stream | None:
        """The stream of a row."""
        if self._streams is None:
            self._streams = _native(self._data, self._reset)
        return self._streams(row)


class PackedOpenings:
    """The events that episodes open with, by their seeds; packed, and decoded when they are looked at."""

    def __init__(self, seeds: NDArray[np.uint64], data: bytes) -> None:
        self._packed = dict(zip(seeds.tolist(), _rows.decode(data), strict=True))

    def __call__(self, seed: int) -> tuple[Event, ...]:
        """The events of the episode with this seed."""
        return _opening.decode(self._packed[seed])


_COLUMNS = {
    "rewards": "f8",
    "seq": "i8",
    "turns": "i8",
    "actions": "i8",
    "terminated": "?",
    "truncated": "?",
}
"""The arrays of a :class:`Steps`, and their dtypes."""


def _told(source: NativeStreams) -> list[Any]:
    """The seeds, the options, the rows, the opening events, and the arrays of a step one after the other."""
    steps, rows, seeds = source.steps, source.rows, source.seeds[source.reset]
    told = [seeds.tobytes(), source.options, None if rows is None else rows.tobytes(), None]
    if source.opening is not None and seeds.size:
        told[-1] = _events.encode([source.opening(seed) for seed in seeds.tolist()])
    if steps is not None:
        told += [steps.start, b"".join([getattr(steps, name).tobytes() for name in _COLUMNS])]
    return told


def _native(data: msgspec.Raw, reset: Bools) -> NativeStreams:
    drawn, options, given, openings, *step = _plain.decode(data)
    seeds, rows = np.zeros(len(reset), np.uint64), None if given is None else np.frombuffer(given, np.bool_)
    seeds[reset] = np.frombuffer(drawn, np.uint64)
    opening = None if openings is None else PackedOpenings(seeds[reset], openings)
    steps = _steps(len(reset), *step) if step else None
    return NativeStreams(opening, reset, seeds, steps, options=options, rows=rows)


def _steps(size: int, start: int, columns: bytes) -> Steps:
    arrays: dict[str, NDArray[Any]] = {}
    place = 0
    for name, dtype in _COLUMNS.items():
        arrays[name] = np.frombuffer(columns, dtype, size, place)
        place += arrays[name].nbytes
    return Steps(start=start, **arrays)


class NativeInfos(dict[str, Any]):
    """The infos of a native vector, to be sent in one piece."""


_OWN = ("stream", "_stream", "seq", "_seq")


def _pack_infos(infos: NativeInfos) -> Any:
    streams, known = infos["stream"], infos["_stream"]
    if streams.built:
        return pack(dict(infos))
    some = None if np.count_nonzero(known) == len(known) else known.tobytes()
    rest = None
    if len(infos) > len(_OWN):
        rest = {key: pack(value) for key, value in infos.items() if key not in _OWN}
    arrays = infos["seq"].tobytes(), streams.untrainable.tobytes(), some
    return Ext(NATIVE, _encoder.encode((*arrays, _told(streams.source), rest)))


def _unpack_infos(data: memoryview) -> dict[str, Any]:
    seq, mask, some, told, rest = _infos.decode(data)
    untrainable = np.frombuffer(bytearray(mask), np.bool_)
    known = np.ones_like(untrainable) if some is None else np.frombuffer(bytearray(some), np.bool_)
    infos: dict[str, Any] = {
        "stream": LazyStreams(PackedNativeStreams(told, untrainable), untrainable),
        "_stream": known,
        "seq": np.frombuffer(bytearray(seq), np.int64),
        "_seq": known.copy(),
    }
    return infos if rest is None else infos | rest


# Streams of other vectors


def _pack_streams(value: LazyStreams) -> Any:
    if value.built or not isinstance(value.source, GivenStreams):
        return pack(value.eager())
    mask = np.asarray(value.untrainable, np.bool_).tobytes()
    return Ext(STREAMS, _encoder.encode((mask, _encoder.encode(value.source.streams))))


def _unpack_streams(data: memoryview) -> LazyStreams:
    mask, packed = _streams.decode(data)
    return LazyStreams(PackedStreams(packed), np.frombuffer(bytearray(mask), np.bool_))


# The last observations of rows that were reset in the same step


class RowsApart:
    """What :func:`envweave_gym.vector.native.rows_apart` makes, to be sent as one array."""

    def __init__(self, batch: NDArray[Any], rows: Bools) -> None:
        self.batch, self.rows = batch[rows], rows.copy()


def _pack_apart(value: RowsApart) -> Any:
    return Ext(ROWS_APART, _encoder.encode((value.rows.tobytes(), pack(value.batch))))


def _unpack_apart(data: memoryview) -> NDArray[np.object_]:
    mask, batch = _apart.decode(data)
    rows = np.frombuffer(mask, np.bool_)
    array = np.full(len(rows), None, object)
    for row, one in zip(rows.nonzero()[0].tolist(), batch, strict=True):
        array[row] = one
    return array


packs(RowsApart, _pack_apart)
unpacks(ROWS_APART, _unpack_apart)
packs(LazyStreams, _pack_streams)
unpacks(STREAMS, _unpack_streams)
packs(NativeInfos, _pack_infos)
unpacks(NATIVE, _unpack_infos)
