"""When a row is lost, ends and resets its whole group, so that the returns in the group stay comparable.

Rows reset themselves at the end of an episode. A lost row would begin its next episode while the other rows of
its group are in the middle of theirs, and the group would never play the same episode again.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault
from envweave_gym.episode.stream import Request, RequestKind, Stream, end_event, fault_event, number
from envweave_gym.episode.vector_infos import FINAL_KEYS, infos_of_rows, rows_of_infos, writeable_streams
from envweave_gym.vector.row_groups import Groups

Bools = NDArray[np.bool_]
Infos = dict[str, Any]
Results = tuple[Any, NDArray[np.float64], Bools, Bools, Infos]


class GroupFaults:
    """Filter of a vector's step results: a group with a lost row ends as a whole, and is reset as a whole."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], groups: Groups) -> None:
        self._vector, self._groups = vector, groups
        self._mode: AutoresetMode = vector.metadata["autoreset_mode"]
        self.waiting: Bools = np.zeros(vector.num_envs, np.bool_)
        """Mask of the rows that the next step resets together, in ``NEXT_STEP`` mode."""

    def stepped(self, results: Results) -> Results:
        """Return the results of a step, changed for groups with a lost row: their rows have ended or were reset."""
        if self.waiting.any():
            rows, self.waiting = self.waiting, np.zeros_like(self.waiting)
            begun = self._vector.reset(options={"reset_mask": rows})
            results = self._replaced(results, begun, rows)
            observations, rewards, terminated, truncated, infos = results
            rewards = np.where(rows, 0.0, rewards)
            results = observations, rewards, terminated & ~rows, truncated & ~rows, infos
        faults = _lost(results, self._mode)
        hit = self._groups.of_any(np.array([fault is not None for fault in faults]))
        if not hit.any():
            return results
        results = self._ended(results, hit, faults)
        if self._mode is AutoresetMode.SAME_STEP:
            return self._reset_in_same_step(results, hit)
        if self._mode is AutoresetMode.NEXT_STEP:
            self.waiting = hit
        return results

    def forget(self, rows: Bools | None) -> None:
        """Cancel the pending resets of ``rows`` (a mask, or ``None`` for all), because the caller resets them."""
        self.waiting = np.zeros_like(self.waiting) if rows is None else self.waiting & ~rows

    def _ended(self, results: Results, hit: Bools, faults: Sequence[Fault | None]) -> Results:
        """End the other episodes of groups with a lost row, with the same fault.

        ``hit`` is the mask of all rows of these groups; ``faults`` has the fault of each lost row.
        """
        observations, rewards, terminated, truncated, infos = results
        cut = hit & ~(terminated | truncated)
        by_row = rows_of_infos(infos, len(hit)) if cut.any() else []
        writeable_streams(infos)  # _add_info assigns to rows, which lazy streams do not allow
        seen = list(iterate(self._vector.observation_space, observations)) if cut.any() else []
        for row in cut.nonzero()[0].tolist():
            group = self._groups.of_row(row)
            lost = next(one for one in group if faults[one] is not None)
            info = _cut(by_row[row], lost, cast("Fault", faults[lost]))
            if self._mode is AutoresetMode.SAME_STEP:
                info = {"final_obs": copy.deepcopy(seen[row]), "final_info": info}
            infos = self._vector._add_info(infos, info, row)
        return observations, rewards, terminated, truncated | cut, infos

    def _reset_in_same_step(self, results: Results, hit: Bools) -> Results:
        """Reset the groups with the rows ``hit`` in this step, as same-step autoreset does.

        Rows whose own reset was lost are left out, because the next step ends them.
        """
        failed = [isinstance(one, Fault) for one in results[4].get("fault", [None] * len(hit))]
        rows = hit & ~np.array(failed)
        if not rows.any():
            return results
        seeds = self._groups.draw(None, hit)
        vector: Any = self._vector
        begun = vector.reset(seed=seeds, options={"reset_mask": rows})
        return self._replaced(results, begun, rows)

    def _replaced(self, results: Results, begun: tuple[Any, Infos], rows: Bools) -> Results:
        """Replace the observations and infos of ``rows`` in ``results`` by those of the reset ``begun``."""
        space: Space[Any] = self._vector.single_observation_space
        pairs = [iterate(self._vector.observation_space, batch) for batch in (results[0], begun[0])]
        mixed = [new if reset else old for reset, old, new in zip(rows, *pairs, strict=True)]
        observations = concatenate(space, mixed, create_empty_array(space, len(rows), fn=np.zeros))
        infos = results[4]
        by_row = [rows_of_infos(one, len(rows)) for one in (infos, begun[1])]
        finals = {key: infos[key] for key in FINAL_KEYS if key in infos}
        chosen = [new if reset else old for reset, old, new in zip(rows, *by_row, strict=True)]
        return observations, *results[1:4], infos_of_rows(chosen) | finals


def _lost(results: Results, mode: AutoresetMode) -> list[Fault | None]:
    """Return for each row the fault of the episode that it lost in this step, or ``None``."""
    _, _, _, truncated, infos = results
    last = infos.get("final_info", {}) if mode is AutoresetMode.SAME_STEP else infos
    if "fault" not in last:
        return [None] * len(truncated)
    faults = last["fault"]
    pairs = zip(faults, truncated.tolist(), strict=True)
    return [fault if isinstance(fault, Fault) and ended else None for fault, ended in pairs]


def _cut(info: Infos, lost: int, because: Fault) -> Infos:
    """Return the info of a row whose episode is ended because row ``lost`` of its group was lost with ``because``."""
    why = f"row {lost} of its group was lost: {because.message}"
    fault, stream = Fault(because.kind, why, because.retryable), cast("Stream", info["stream"])
    seq, turn = int(info["seq"]), stream.requests[0].turn if stream.requests else 0
    events = stream.events + number([fault_event(fault), end_event(False, True)], seq + 1)
    ended = Stream((Request(seq + 2, RequestKind.RESET, None, turn),), events)
    return {**info, "fault": fault, "stream": ended, "seq": type(info["seq"])(seq + 2)}
