"""What the client of a remote vector knows of its rows, which is enough to say how one was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envweave_gym.faults import Fault
from envweave_gym.losses import end_event, lost_info, lost_reset_info
from envweave_gym.seeding import GOLDEN, SEED_BITS, SeedRows, mix_many
from envweave_gym.stream import EventKind, Request, RequestKind, Stream, jsonable, number
from envweave_gym.vector_calls import Bools


class RowLedger:
    """The seed, the last event and the turn of every row, whether its episode is over, and the next seeds."""

    def __init__(self, rows: int) -> None:
        self._draws = SeedRows(rows)
        self._seeds = np.zeros(rows, np.uint64)
        self._drawn = np.zeros(rows, np.uint64)
        """How many seeds each row has drawn by itself since the last reset by hand."""
        self._seq, self._turns = np.zeros((2, rows), np.int64)
        self.over: Bools = np.zeros(rows, np.bool_)

    # Seeds

    def draws(self, before: Bools | None = None) -> NDArray[np.uint64]:
        """The state from which each row draws next, or drew last in the rows of ``before``."""
        drawn = self._drawn if before is None else self._drawn - before
        return self._draws._states + drawn * GOLDEN

    def draw(self, rows: Bools, given: Sequence[int | None] | None) -> NDArray[np.uint64]:
        """Draw the seeds of a reset by hand, unless they are given; gives the states before."""
        before, chosen = self.draws(), rows.nonzero()[0]
        self._seeds = self._all_seeds()
        self._draws._states, self._drawn = before.copy(), np.zeros_like(self._drawn)
        self._seeds[chosen] = self._draws.next(chosen, given)
        return before

    def drew(self, rows: Bools) -> None:
        """Each of these rows is reset by itself, with a seed of its own."""
        self._drawn += rows

    def _all_seeds(self) -> NDArray[np.uint64]:
        drawn = mix_many(self.draws(self._drawn > 0)) >> np.uint64(64 - SEED_BITS)
        return np.where(self._drawn > 0, drawn, self._seeds)

    # What happens

    def began(self, rows: Bools, infos: dict[str, Any]) -> None:
        """Episodes have begun in ``rows``."""
        self._turns[rows] = 0
        self._seq[rows] = self._last_events(infos)[rows]
        self.over = self.over & ~rows

    def acted(self, waiting: Bools, over: Bools, infos: dict[str, Any]) -> None:
        """All rows have acted, but those that were waiting for their reset."""
        self._turns += ~waiting
        self._turns[waiting] = 0
        self._seq = self._last_events(infos).copy()
        self.over = over

    def _last_events(self, infos: dict[str, Any]) -> NDArray[np.int64]:
        return infos.get("seq", self._seq)

    # How rows are lost

    def lost(self, row: int, fault: Fault, kind: EventKind, action: Any) -> dict[str, Any]:
        """The info of a row that has acted and is lost."""
        seq, turn = int(self._seq[row]), int(self._turns[row]) + 1
        return lost_info(fault, kind, jsonable(action), seq=seq, turn=turn)

    def lost_start(self, row: int, fault: Fault, options: Any = None) -> dict[str, Any]:
        """The info of a row whose reset was lost, which the next step says of it."""
        start: dict[str, Any] = {"seed": int(self._all_seeds()[row])}
        return lost_reset_info(fault, start | ({"options": jsonable(options)} if options else {}))

    def lost_at_start(self, row: int, fault: Fault) -> dict[str, Any]:
        """The info of a row whose step was a reset, and that was lost with the others of its server."""
        info = self.lost_start(row, fault)
        seq, events = info["seq"] + 1, info["stream"].events
        events += number([end_event(False, True)], seq)
        return {**info, "stream": Stream((Request(seq, RequestKind.RESET, None, 0),), events), "seq": seq}
