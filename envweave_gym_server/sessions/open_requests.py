"""The open requests of a vector's rows; the reply to a reset of some rows covers only those."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from envweave_gym.wire.messages import Began, Reset, read_reply

_NONE: Mapping[int, int] = MappingProxyType({})


class OpenRequests(NamedTuple):
    """The last reply that covers every row, and the rows that were reset since then."""

    frame: bytes
    began: Mapping[int, int] = _NONE
    """By row the ``seq`` of its open request."""

    def after(self, message: Reset, frame: bytes) -> OpenRequests:
        """The open requests after a reset, whose reply is in ``frame``."""
        options: Any = message.options
        if not isinstance(options, dict) or options.get("reset_mask") is None:
            return OpenRequests(frame)
        reply = read_reply(frame)
        if not isinstance(reply, Began) or "_stream" not in reply.info:  # it has crashed, or is no vector
            return OpenRequests(frame)
        rows, seq = reply.info["_stream"].nonzero()[0], reply.info["seq"]
        return OpenRequests(
            self.frame, {**self.began, **dict(zip(rows.tolist(), seq[rows].tolist(), strict=True))}
        )
