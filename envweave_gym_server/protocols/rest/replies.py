"""Conversion of replies of sessions to JSON bodies."""

from __future__ import annotations

from typing import Any

from envweave_gym.core.faults import Fault, FaultKind
from envweave_gym.core.protocols import AGENT
from envweave_gym.episode.stream import Request, RequestKind, Stream, stream_of
from envweave_gym.wire.messages import (
    DONE_ALL_THE_SAME,
    Began,
    Refused,
    Reply,
    Stepped,
    read_reply,
)
from envweave_gym.wire.packed_streams import take_results
from envweave_gym_server.protocols.rest.json_values import Arrays, plain
from envweave_gym_server.protocols.rest.schemas import Lost, Played
from envweave_gym_server.sessions.session import Snapshot

_RESET = Request(-1, RequestKind.RESET, None, 0)
_LIFTED = {
    "infos": "info",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}
"""Fields of game replies, and their names in the JSON API."""


def played(reply: Began | Stepped, arrays: Arrays) -> Played:
    """Return a reply to a reset or step as a JSON body."""
    if isinstance(reply, Stepped):
        take_results(reply)
    fields: dict[str, Any] = {name: getattr(reply, name) for name in reply.__struct_fields__}
    if _is_game(reply.info):
        lifted = {_LIFTED.get(name, name): value for name, value in reply.info.items()}
        fields |= {name: value for name, value in lifted.items() if name in Played.__struct_fields__}
    return Played(**{name: plain(value, arrays) for name, value in fields.items()})


def lost(refused: Refused) -> Lost | None:
    """Return the fault in an error reply whose call was executed all the same, else ``None``."""
    if refused.kind not in DONE_ALL_THE_SAME:
        return None
    retryable = refused.kind != "FaultStorm"
    return Lost(refused.number, Fault(FaultKind.CRASH, refused.message, retryable))


def selection_of(reply: Reply) -> str | None:
    """Return the agent whose turn it is after this reply of a turn-based game."""
    return reply.info.get("selection") if isinstance(reply, Began | Stepped) else None


def requests_of(snapshot: Snapshot) -> Any:
    """Return the open requests: a list, or for a vector one list for each row."""
    requests = _requests_in(read_reply(snapshot.whole_reply))
    for row, seq in snapshot.began.items():
        requests[row] = [Request(seq, RequestKind.ACT, AGENT, 0)]
    return requests


def _requests_in(reply: Reply) -> Any:
    if not isinstance(reply, Began | Stepped):
        return [_RESET]
    streams = stream_of(reply.info["infos"] if _is_game(reply.info) else reply.info)
    if isinstance(streams, dict):
        requests = {request for one in streams.values() for request in one.requests}
        return sorted(requests, key=lambda request: (request.seq, request.agent or ""))
    if isinstance(streams, list):
        return [list(one.requests) if one else [] for one in streams]
    return list(streams.requests)


def agents_of(requests: Any) -> Any:
    """Return the agents with an open ``act`` request."""
    if requests and isinstance(requests[0], list):
        return [agents_of(row) for row in requests]
    return list(Stream(tuple(requests)).agents())


def _is_game(info: Any) -> bool:
    return "infos" in info and "agents" in info and "stream" not in info
