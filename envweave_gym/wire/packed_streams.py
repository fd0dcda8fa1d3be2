"""Serialisation of a vector's streams (events and requests): packed together, decoded row by row when read.

For a native vector the frame holds the arrays that its streams are built from, and the opening events of its
new episodes. A reply holds everything about its streams, so reading them sends no further request.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Decoder, Encoder, Ext
from numpy.typing import NDArray

from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.columns import Bools, ColumnStreams, StepColumns
from envweave_gym.episode.stream import Event, Stream
from envweave_gym.episode.trainable import untrainable_rows
from envweave_gym.episode.vector_infos import StreamRows, VectorInfos
from envweave_gym.wire.messages import Stepped
from envweave_gym.wire.values import NATIVE, pack, packs, unpack, unpacks

ROWS_APART = 100
"""Code of an extension that :mod:`envweave_gym.wire.values` does not define itself."""

_encoder = Encoder()
_events = Encoder(enc_hook=jsonable)
_infos = Decoder(tuple[bytes, bytes, bytes | None, msgspec.Raw, dict[str, Any] | None], ext_hook=unpack)
_rows = Decoder(list[msgspec.Raw])
_one = Decoder(Stream | None)
_opening = Decoder(tuple[Event, ...])
_plain = Decoder()
_apart = Decoder(tuple[bytes, Any], ext_hook=unpack)


class PackedStreams:
    """Streams in a reply, by row; decoded when the first of them is read."""

    def __init__(self, data: msgspec.Raw, reset: Bools, seq: bytes) -> None:
        """``data`` is the packed field of the reply; ``reset`` is a mask of the rows that began an episode.

        ``seq`` holds the number of each row's last event, as int64.
        """
        self._data, self._reset, self._seq = data, reset, seq
        self._read: Callable[[int], Stream | None] | None = None

    def __call__(self, row: int) -> Stream | None:
        """Return the stream of ``row``; ``None`` if it has none."""
        if self._read is None:
            self._read = self._reader(_plain.decode(self._data))
        return self._read(row)

    def _reader(self, received: list[Any] | bytes) -> Callable[[int], Stream | None]:
        if isinstance(received, list):
            return _native(received, self._reset, np.frombuffer(self._seq, np.int64))
        packed = _raw_rows(received, len(self._reset))
        return lambda row: _one.decode(packed[row])

    def results(self) -> tuple[NDArray[np.float64], Bools, Bools]:
        """Return the rewards, terminations and truncations of the step, in writable arrays."""
        size, columns = len(self._reset), bytearray(_plain.decode(self._data)[-1])
        rewards, ends = (
            np.frombuffer(columns, "f8", size),
            np.frombuffer(columns, "?", 2 * size, _ENDS * size),
        )
        return rewards, ends[:size], ends[size:]


def _raw_rows(data: bytes, size: int) -> list[msgspec.Raw]:
    """Return the items of a msgpack list, undecoded; raise ``ValueError`` if there are not ``size`` of them.

    The head of the list is compared first: a hostile peer may send far more rows, and each takes memory.
    """
    if not data.startswith(_list_head(size)):
        raise ValueError(f"the streams are not those of {size} rows")
    return _rows.decode(data)


def _list_head(size: int) -> bytes:
    if size < 16:
        return bytes([0x90 | size])
    return struct.pack(">BH", 0xDC, size) if size < 1 << 16 else struct.pack(">BI", 0xDD, size)


# Streams of native vectors


class PackedOpenings:
    """Opening events of episodes, by seed; decoded when they are read."""

    def __init__(self, seeds: NDArray[np.uint64], data: bytes) -> None:
        self._packed = dict(zip(seeds.tolist(), _raw_rows(data, len(seeds)), strict=True))

    def __call__(self, seed: int) -> tuple[Event, ...]:
        """Return the opening events of the episode with this seed."""
        return _opening.decode(self._packed[seed])


_COLUMNS = {
    "rewards": "f8",
    "turns": "i8",
    "actions": "i8",
    "terminated": "?",
    "truncated": "?",
}
"""The arrays of a :class:`StepColumns` and their dtypes, but ``seq``, which is an info of its own."""
_ENDS = 24
"""Bytes of a row in the columns before the last two, ``terminated`` and ``truncated``."""


def _packed_columns(source: ColumnStreams) -> list[Any]:
    """Pack seeds, options, rows and opening events; if there was a step, also its start and its columns."""
    steps, rows, seeds = source.step, source.rows, source.seeds[source.reset]
    packed = [seeds.tobytes(), source.options, None if rows is None else rows.tobytes(), None]
    if source.opening is not None and seeds.size:
        packed[-1] = _events.encode([source.opening(seed) for seed in seeds.tolist()])
    if steps is not None:
        packed += [steps.start, b"".join([getattr(steps, name).tobytes() for name in _COLUMNS])]
    return packed


def _native(received: list[Any], reset: Bools, seq: NDArray[np.int64]) -> ColumnStreams:
    drawn, options, given, openings, *step = received
    seeds, rows = np.zeros(len(reset), np.uint64), None if given is None else np.frombuffer(given, np.bool_)
    seeds[reset] = np.frombuffer(drawn, np.uint64)
    opening = None if openings is None else PackedOpenings(seeds[reset], openings)
    steps = _steps(seq, *step) if step else None
    return ColumnStreams(opening, reset, seeds, steps, options=options, rows=rows)


def _steps(seq: NDArray[np.int64], start: int, columns: bytes) -> StepColumns:
    arrays: dict[str, NDArray[Any]] = {"seq": seq}
    size, offset = len(seq), 0
    for name, dtype in _COLUMNS.items():
        arrays[name] = np.frombuffer(columns, dtype, size, offset)
        offset += arrays[name].nbytes
    return StepColumns(start=start, **arrays)


_OWN = ("stream", "_stream", "seq", "_seq")


def _pack_infos(infos: VectorInfos) -> Any:
    """Pack all infos as one extension; infos without a stream for every row are sent as a plain dict."""
    if not infos.keys() >= set(_OWN):
        return pack(dict(infos))
    streams, known = infos["stream"], infos["_stream"]
    some = None if np.count_nonzero(known) == len(known) else known.tobytes()
    rest = None
    if len(infos) > len(_OWN):
        rest = {key: pack(infos[key]) for key in infos if key not in _OWN}
    if isinstance(streams, StreamRows) and isinstance(streams.build, ColumnStreams):
        untrainable, packed = streams.untrainable, _packed_columns(streams.build)
    else:
        untrainable, packed = untrainable_rows(streams), _encoder.encode(list(streams))
    return Ext(NATIVE, _encoder.encode((infos["seq"].tobytes(), untrainable.tobytes(), some, packed, rest)))


def _unpack_infos(data: memoryview) -> VectorInfos:
    seq, mask, some, packed, rest = _infos.decode(data)
    untrainable = np.frombuffer(bytearray(mask), np.bool_)
    known = np.ones_like(untrainable) if some is None else np.frombuffer(bytearray(some), np.bool_)
    infos = VectorInfos(
        stream=StreamRows(PackedStreams(packed, untrainable, seq), untrainable),
        _stream=known,
        seq=np.frombuffer(bytearray(seq), np.int64),
        _seq=known.copy(),
    )
    if rest is not None:
        infos.update(rest)
    return infos


# Results that are in the columns already


def holds_results(infos: Any, reward: Any, terminated: Any, truncated: Any) -> bool:
    """Return whether the packed infos contain the results of a step, which then need not be sent twice.

    A wrapper may have changed the rewards that a vector returns, so the bytes are compared.
    """
    streams = infos.get("stream") if isinstance(infos, VectorInfos) and infos.keys() >= set(_OWN) else None
    step = (
        streams.build.step
        if isinstance(streams, StreamRows) and isinstance(streams.build, ColumnStreams)
        else None
    )
    if step is None:
        return False
    pairs = (reward, step.rewards), (terminated, step.terminated), (truncated, step.truncated)
    return all(
        type(one) is np.ndarray and one.dtype == own.dtype and one.tobytes() == own.tobytes()
        for one, own in pairs
    )


def take_results(reply: Stepped) -> None:
    """Set the results of a step in ``reply`` that were left out, from the columns in its infos."""
    if reply.reward is None and isinstance(reply.info, VectorInfos):
        reply.reward, reply.terminated, reply.truncated = reply.info["stream"].build.results()


# The last observations of rows that were reset in the same step


class RowsApart:
    """Last observations of rows that were reset, packed as one array, which is cheaper than an object for each row."""

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
packs(VectorInfos, _pack_infos)
unpacks(NATIVE, _unpack_infos)
