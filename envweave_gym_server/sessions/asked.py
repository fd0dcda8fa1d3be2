"""The open requests of a vector's rows; the reply to a reset of some rows covers only those."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from envweave_gym.wire.messages import Began, Reset, read_reply

_NONE: Mapping[int, int] = MappingProxyType({})


class Asked(NamedTuple):
    """The last reply that covers every row, and the rows that were reset since then."""

    frame: bytes
    began: Mapping[int, int] = _NONE
    """By row the number of the event at which its agent was asked to act."""

    def after(self, message: Reset, frame: bytes) -> Asked:
        """The open requests after a reset, whose reply is in ``frame``."""
        options: Any = message.options
        if not isinstance(options, dict) or options.get("reset_mask") is None:
            return Asked(frame)
        reply = read_reply(frame)
        if not isinstance(reply, Began) or "_stream" not in reply.info:  # it has crashed, or is no vector
            return Asked(frame)
        rows, seq = reply.info["_stream"].nonzero()[0], reply.info["seq"]
        return Asked(self.frame, {**self.began, **dict(zip(rows.tolist(), seq[rows].tolist(), strict=True))})
