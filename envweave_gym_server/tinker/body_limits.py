"""Limits on the bytes of request bodies: of one body, and of all that are read and decoded at one time."""

from __future__ import annotations

import threading

from flask import Flask, g, request

from envweave_gym_server.tinker.api_errors import BadInput, Busy

SMALL_BODY = 64 << 10
"""Bodies up to this size are always read: large ones must not keep other clients from sampling or stepping."""
MOST_BODY_BYTES = 1 << 30
"""Bytes of larger bodies that are read or decoded at one time, over all connections."""
_PIECE_BYTES, _MOST_DISCARDED = 64 << 10, 4 << 30


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

    @app.before_request
    def admit() -> None:
        length, largest = request.content_length or 0, app.config["MAX_CONTENT_LENGTH"]
        if length > largest:
            _discard(length)
            raise BadInput(
                f"the body of {request.path} has {length} bytes, and this server reads {largest} at most; send fewer "
                "or shorter rows at a time"
            )
        if length <= SMALL_BODY:
            return
        if not budget.take(length):
            _discard(length)
            raise Busy(f"{budget.used >> 20} MB of requests are read at this moment; come again")
        g.taken_bytes = length

    @app.teardown_request
    def give_back(_: BaseException | None) -> None:
        taken = g.pop("taken_bytes", 0)
        if taken:
            budget.give_back(taken)


def _discard(length: int) -> None:
    """Read a body and keep nothing of it: a reply before its end would be lost when the connection is reset."""
    stream, left = request.environ["wsgi.input"], min(length, _MOST_DISCARDED)
    while left > 0 and (piece := stream.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
