"""What the client of a remote vector knows of its rows, which is enough to say how one was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault
from envweave_gym.core.seeding import GOLDEN, SEED_BITS, SeedRows, mix_many
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import EventKind
from envweave_gym.vector.calls import Bools

_ONE = np.array(1)
_SPARE_BITS = np.uint64(64 - SEED_BITS)


class Draws(NamedTuple):
    """The seeds that rows begin with when they are reset now."""

    states: NDArray[np.uint64]
    """What each row draws its seed from, so that a server can go on drawing."""
    seeds: NDArray[np.uint64]


class RowLedger:
    """How far every row has come, whether its episode is over, and the seeds it is to draw."""

    def __init__(self, rows: int) -> None:
        self._draws = SeedRows(rows)
        self._drawn = np.zeros(rows, np.uint64)
        """How many seeds each row has drawn by itself since the last reset by hand."""
        self._seq, self._turns = np.zeros((2, rows), np.int64)
        self._episodes = np.full(rows, -1)
        self.over: Bools = np.zeros(rows, np.bool_)
        self.goes_on = False
        """Whether rows that reset themselves get no seed, so that their generators go on."""

    # Seeds

    def upcoming(self) -> Draws:
        """What rows draw that reset themselves now; they have drawn it once :meth:`acted` is told."""
        states = self._states()
        return Draws(states, mix_many(states) >> _SPARE_BITS)

    def draw(self, rows: Bools, given: Sequence[int | None] | None) -> Draws:
        """Draw the seeds of a reset by hand, unless they are given."""
        before, chosen = self._states(), rows.nonzero()[0]
        self._draws._states, self._drawn = before.copy(), np.zeros_like(self._drawn)
        seeds = np.zeros_like(before)
        seeds[chosen] = self._draws.next(chosen, given)
        return Draws(before, seeds)

    def _states(self) -> NDArray[np.uint64]:
        return self._draws._states + self._drawn * GOLDEN

    # What happens

    def began(self, rows: Bools, infos: dict[str, Any]) -> None:
        """Episodes have begun in ``rows``."""
        self._episodes[rows] += 1
        self._turns[rows] = 0
        self._seq[rows] = self._last_events(infos)[rows]
        self.over = self.over & ~rows

    def acted(self, waiting: Bools, over: Bools, infos: dict[str, Any]) -> None:
        """All rows have acted, but those that were waiting for their reset and have been reset."""
        self._turns += _ONE
        if np.count_nonzero(waiting):
            self._drawn += waiting
            self._episodes += waiting
            self._turns[waiting] = 0
        self._seq = self._last_events(infos).copy()
        self.over = over

    def _last_events(self, infos: dict[str, Any]) -> NDArray[np.int64]:
        return infos.get("seq", self._seq)

    def counters(self, row: int) -> dict[str, int]:
        """The episode of a row, and how many steps it has taken."""
        return {"episode": int(self._episodes[row]), "step_count": int(self._turns[row])}

    # How rows are lost

    def lost(self, row: int, fault: Fault, kind: EventKind, action: Any) -> dict[str, Any]:
        """The info of a row that has acted and is lost."""
        record = EpisodeRecord(seq=int(self._seq[row]), turn=int(self._turns[row]))
        if kind is EventKind.ACT:
            return record.lost(fault, action)
        record.lost_between_steps(fault)
        return record.report_loss(action)

    def lost_start(self, seed: int | None, fault: Fault, options: Any = None) -> dict[str, Any]:
        """The info of a row whose reset was lost, which the next step says of it."""
        return EpisodeRecord().lost_reset(fault, seed, options)

    def lost_at_start(self, seed: int, fault: Fault) -> dict[str, Any]:
        """The info of a row whose step was a reset, and that was lost with the others of its server."""
        return EpisodeRecord().lost_at_start(fault, None if self.goes_on else seed)
