"""Resource limits on msgpack frames from a peer, checked by counting values before a frame is decoded.

A map of one byte becomes a Python object of 70 bytes, and the decoder builds all of them in one call during
which no other thread runs: a frame of a few megabytes could take gigabytes, and stop every session for seconds.

The count needs no stack, as the values of nested lists and maps follow one another. Only extensions hold
msgpack that may end too early or too late; each is counted within its own bounds.
"""

from __future__ import annotations

from contextlib import suppress

from envweave_gym.wire.hash_collisions import EXTENSION_HEAD, HEADS, OPAQUE, TEXT_HEAD, check_keys
from envweave_gym.wire.values import (
    COMPLEX,
    FAULT,
    GRAPH,
    MOMENT,
    OBJECTS,
    PAIRS,
    RECORD,
    RESULT,
    SET,
    STREAM,
    TUPLE,
)

MOST_VALUES = 1 << 20
"""Limit of values in a frame from a client: 16 for each row of a vector with 65,536 rows.

Decoding a frame at the limit takes up to 160 MB (measured with arrays of one element).
"""
MOST_REPLY_VALUES = 1 << 24
"""Limit of values in a reply.

It is higher, because a reply contains the observations and infos of all rows, and a client chooses its server.
"""
EXTENSION = 4
"""Number of values that one extension counts as, because Python code decodes it.

The values inside the extension are counted in addition.
"""

_EAGER = frozenset({TUPLE, OBJECTS, STREAM, FAULT, GRAPH, PAIRS, RESULT, SET, COMPLEX, MOMENT, RECORD})
"""Extensions that are decoded together with the frame; others are decoded when their value is first read."""
_KNOWN = OPAQUE | _EAGER


def _uncounted(most: int) -> int:
    """Return the size in bytes up to which no frame can hold more than ``most`` values.

    The densest frames consist of extensions of three bytes, each with a value of one byte in it.
    """
    return 3 * most // (EXTENSION + 1)


_SMALL_CALL = _uncounted(MOST_VALUES)
SMALL_REPLY = _uncounted(MOST_REPLY_VALUES)
"""Size in bytes up to which a reply needs no check."""


class TooManyValues(ValueError):
    """Error if a frame has too many values; decoding it would take too much memory and time."""


def check_call(frame: bytes) -> None:
    """Check a frame from a client against all limits; raise ``ValueError`` if it exceeds one.

    Small frames cannot exceed a limit and are not counted, so that most steps pay nothing. Callers skip this
    function for frames below ``SMALL_FRAME`` (:mod:`envweave_gym.wire.hash_collisions`).
    """
    if len(frame) > _SMALL_CALL and _exceeds(frame, MOST_VALUES, lazy_by_size=True):
        raise TooManyValues(_refusal(MOST_VALUES))
    check_keys(frame)


def check_reply(frame: bytes) -> None:
    """Check a frame from a server against its limit; raise ``TooManyValues`` if it exceeds that.

    A hostile server or environment must not fill the memory of its client.
    """
    if len(frame) > SMALL_REPLY and _exceeds(frame, MOST_REPLY_VALUES):
        raise TooManyValues(_refusal(MOST_REPLY_VALUES))


def _refusal(most: int) -> str:
    return (
        f"the frame holds more than {most:,} values, of which an array, a tuple or a set counts as "
        f"{EXTENSION}; send many numbers as one array, or fewer rows at once"
    )


_STEPS = [
    0 if width or kind == EXTENSION_HEAD else 1 + size * (kind <= TEXT_HEAD) for kind, width, size in HEADS
]
"""Length of a value or of the head of a list or map, by its first byte; 0 if the bytes after that decide."""


def _exceeds(frame: bytes, most: int, *, lazy_by_size: bool = False) -> bool:
    """Return whether the values of a frame count as more than ``most``; the count stops there.

    ``lazy_by_size`` counts every byte of an extension that is decoded later as a value: the extension holds
    msgpack too, in which each value takes at least a byte.
    """
    data = frame if type(frame) is bytes else memoryview(frame)
    steps, parts, tokens, more = _STEPS, [(0, len(data))], 0, 0
    for at, end in parts:  # grows meanwhile by the contents of extensions
        first = tokens
        with suppress(IndexError):  # it is cut off, as the decoder finds after all that comes before
            for tokens in range(first, most + 1):
                if at >= end:
                    break
                if step := steps[data[at]]:
                    at += step
                    continue
                kind, width, size = HEADS[data[at]]
                at += 1
                if width:
                    size += int.from_bytes(data[at : at + width], "big")
                    at += width
                if kind <= TEXT_HEAD:
                    at += size
                elif kind == EXTENSION_HEAD:
                    code, start = data[at], at + 1
                    at = start + size
                    more += EXTENSION - 1
                    if lazy_by_size and code not in _KNOWN:
                        more += at - start
                    elif code not in OPAQUE:
                        parts.append((start, min(at, end)))
                    if tokens + more > most:
                        return True
            else:
                return True
    return tokens + more > most
