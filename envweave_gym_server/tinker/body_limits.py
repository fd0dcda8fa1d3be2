"""Limits on the bytes of request bodies: of one body, and of all that are read and decoded at one time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from flask import Flask, g, request

from envweave_gym_server.tinker.api_errors import BadInput, Busy

SMALL_BODY = 64 << 10
"""Bodies up to this size are always read: large ones must not keep other clients from sampling or stepping."""
MAX_BODY_BYTES = 1 << 30
"""Bytes of larger bodies that are read or decoded at one time, over all connections."""
_PIECE_BYTES, _MAX_DISCARDED = 64 << 10, 4 << 30


class ByteBudget:
    """A number of bytes that requests take and give back; a single request may have more than all."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """The bytes that are taken now."""
        return self._used

    def take(self, count: int) -> bool:
        """Take bytes if there are as many, or if nothing is taken; return whether that was done."""
        with self._lock:
            if self._used and self._used + count > self._most:
                return False
            self._used += count
            return True

    def give_back(self, count: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._used -= count


def limit_bodies(app: Flask, budget: ByteBudget) -> None:
    """Refuse bodies that are too large, and for now those for which ``budget`` has no bytes left."""

    def take(count: int) -> None:
        if not budget.take(count):
            raise Busy(f"{budget.used >> 20} MB of requests are read at this moment; try again")
        g.taken_bytes = g.get("taken_bytes", 0) + count

    @app.before_request
    def admit() -> None:
        g.take_bytes = take
        length, largest = request.content_length or 0, app.config["MAX_CONTENT_LENGTH"]
        stream = request.environ["wsgi.input"]
        if length > largest:
            _discard(stream, length)
            raise BadInput(
                f"the body of {request.path} has {length} bytes, and this server reads {largest} at most; send fewer "
                "or shorter rows at a time"
            )
        if request.content_length is None:
            request.environ["wsgi.input"] = _CountedStream(stream, take)
        if length <= SMALL_BODY:
            return
        try:
            take(length)
        except Busy:
            _discard(stream, length)
            raise

    @app.teardown_request
    def give_back(_: BaseException | None) -> None:
        taken = g.pop("taken_bytes", 0)
        if taken:
            budget.give_back(taken)


def take_bytes(count: int) -> None:
    """Take bytes for what the current request decodes to, until its end; raise ``Busy`` if there are none."""
    g.take_bytes(count)


class _CountedStream:
    """A body of unknown length: its bytes are taken as they are read."""

    def __init__(self, stream: Any, take: Callable[[int], None]) -> None:
        self._stream, self._take, self._length = stream, take, 0

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self._length += len(piece)
        if self._length > SMALL_BODY:
            try:
                self._take(len(piece))
            except Busy:
                _discard(self._stream, _MAX_DISCARDED)
                raise
        return piece


def _discard(stream: Any, length: int) -> None:
    """Read a body and keep nothing of it: a reply before its end would be lost when the connection is reset."""
    left = min(length, _MAX_DISCARDED)
    while left > 0 and (piece := stream.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
