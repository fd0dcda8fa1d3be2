"""The reply to a step that lost its episode: last observation, reward 0, truncated, a fault."""

from __future__ import annotations

from envweave_gym.core.faults import EnvironmentCrashed, Fault, FaultKind, fault_of
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import RequestKind, Stream
from envweave_gym.wire.messages import Began, Step, Stepped, read_reply
from envweave_gym.wire.values import pack


def lost_step(message: Step, last: bytes | None, error: BaseException) -> Stepped | None:
    """Apply ``on_fault="truncate"`` to an exception that the wrappers of the environment did not catch.

    That is the death of a worker, or an exception that is no ``Exception``. ``last`` is the previous reply,
    with the last observation and the open request. Returns ``None`` for vectors and games, and if no
    episode was under way.
    """
    before = None if last is None else read_reply(last)
    if not isinstance(before, Began | Stepped) or not isinstance(before.info, dict):
        return None
    stream = before.info.get("stream")
    if not isinstance(stream, Stream) or not stream.requests:
        return None
    request = stream.requests[0]
    if request.kind != RequestKind.ACT:
        return None
    crash = Fault(FaultKind.CRASH, str(error), retryable=True)
    fault = crash if isinstance(error, EnvironmentCrashed) else fault_of(error)
    info = EpisodeRecord(seq=request.seq, turn=request.turn).lost(fault, message.action)
    return Stepped(message.call, pack(before.observation), 0.0, False, True, pack(info))
