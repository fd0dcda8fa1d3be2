"""Which steps a trainer may learn from: the mask of steps that were transitions of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault
from envweave_gym.episode.stream import EventKind, Stream, final_of, is_by_agent, require_info
from envweave_gym.episode.vector_infos import StreamRows

UNTRAINABLE = (EventKind.EPISODE_START, EventKind.IGNORED, EventKind.FAULT)
"""The kinds of events that make a step no transition. Native vectors mark these rows themselves."""
# A tuple compares by identity; a set would call the hash function of the enum, which is Python code.


def trainable(infos: Any) -> Any:
    """Return the mask for a trainer's loss: ``False`` where a step was no transition of the agent.

    That is a fault, a reset (so also a row's reset step under next-step autoreset), or an ignored action. A
    plain info gives a bool, a vector info a boolean array, PettingZoo infos a dict of bools by agent. A row
    that ended and was reset in the same step counts as a step. Infos without a stream count as transitions,
    since environments of other packages have no streams; those of such a vector give one True for all rows.
    """
    if isinstance(infos, list | tuple):
        return np.array([trainable(info) for info in infos], dtype=np.bool_)
    require_info(infos)
    if is_by_agent(infos):
        return {agent: trainable(info) for agent, info in infos.items()}
    if "trainable" in infos and "stream" not in infos:
        return infos["trainable"]
    if isinstance(infos.get("stream"), np.ndarray | StreamRows):
        return _trainable_rows(infos)
    infos = final_of(infos) or infos
    return not isinstance(infos.get("fault"), Fault) and not _is_untrainable(infos.get("stream"))


def _trainable_rows(infos: Mapping[str, Any]) -> NDArray[np.bool_]:
    streams, faults, final = infos["stream"], infos.get("fault"), final_of(infos)
    mask = ~(streams.untrainable if isinstance(streams, StreamRows) else untrainable_rows(streams))
    if isinstance(faults, np.ndarray):
        mask &= [not isinstance(fault, Fault) for fault in faults]
    if "stream" in final:
        ended = np.asarray(infos["_final_info"], dtype=np.bool_)
        mask[ended] = _trainable_rows(final)[ended]
    return mask


def untrainable_rows(streams: Iterable[Any]) -> NDArray[np.bool_]:
    """Return a mask of the rows whose streams have an event of :data:`UNTRAINABLE`; a row may have no stream."""
    return np.array([_is_untrainable(stream) for stream in streams], np.bool_)


def _is_untrainable(stream: Any) -> bool:
    if isinstance(stream, Stream):
        for event in stream.events:  # any() with a generator costs another call for each stream
            if event.kind in UNTRAINABLE:
                return True
    return False
