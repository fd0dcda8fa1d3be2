"""Groups of rows that play the same episodes, so that their returns can be compared (GRPO).

Consecutive rows form a group. A reset of a whole group gives its rows one seed, given or drawn. Each row
derives the seeds of its next episodes from that seed and its count of episodes, so the n-th episode is the same
in all rows. If a row is lost, its whole group is ended and reset (:mod:`envweave_gym.vector.group_faults`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envweave_gym.core.faults import InvalidArgument, shown
from envweave_gym.core.seeding import SeedRows, mix


class Groups:
    """Division of a vector's rows into groups of ``size`` consecutive rows, with a seed generator."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows, self.size = rows, size
        self._draws = SeedRows(rows // size)

    def of_row(self, row: int) -> range:
        """Return the rows of the group that contains ``row``."""
        first = row - row % self.size
        return range(first, first + self.size)

    def of_any(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask of all rows in the groups that contain any of ``rows`` (a mask)."""
        return np.repeat(rows.reshape(-1, self.size).any(axis=1), self.size)

    def of_rows(self, name: str, given: list[int | None]) -> list[int | None]:
        """Return a seed for every row from ``given``, which has a seed for each group or for each row.

        Raise ``InvalidArgument`` if seeds in a group differ.
        """
        groups = self.rows // self.size
        if len(given) == groups:
            return [one for one in given for _ in range(self.size)]
        if len(given) != self.rows:
            raise InvalidArgument(
                f"{name}: {len(given)} seeds were given; give one for each of {groups} groups, or of "
                f"{self.rows} rows"
            )
        for row, seed in enumerate(given):
            first = row - row % self.size
            if seed != given[first]:
                raise InvalidArgument(
                    f"{name}: rows {first} and {row} are of one group and were given the seeds "
                    f"{given[first]} and {seed}; give a group one seed"
                )
        return given

    def draw(self, given: list[int | None] | None, mask: NDArray[np.bool_] | None) -> list[int | None]:
        """Return a seed for each row: the one in ``given``, or one drawn for its group if the whole group is reset.

        Rows of groups that are reset in part get ``None``, and draw seeds of their own. ``mask`` selects the rows that
        are reset, ``None`` all.
        """
        known = None if given is None else given[:: self.size]
        whole = np.ones(self.rows, np.bool_) if mask is None else mask
        groups = np.flatnonzero(whole.reshape(-1, self.size).all(axis=1))
        bases = None if known is None else [None if one is None else mix(one) for one in known]
        drawn = dict(zip(groups.tolist(), self._draws.next(groups, bases).tolist(), strict=True))
        seeds = [drawn.get(group) for group in range(self.rows // self.size)]
        if known is not None:
            seeds = [one if mine is None else mine for one, mine in zip(seeds, known, strict=True)]
        return [one for one in seeds for _ in range(self.size)]


def groups_of(name: str, group: Any, num_envs: int) -> Groups | None:
    """Check ``group=``, the number of rows in a group; return the groups, or ``None`` if it is ``None`` or 1."""
    if group is None:
        return None
    if type(group) is not int or group < 1 or num_envs % group:
        raise InvalidArgument(
            f"{name}: group={shown(group)} is no size of groups; give an int from 1 on that divides "
            f"num_envs={num_envs}"
        )
    return None if group == 1 else Groups(num_envs, group)


def refuse_group(name: str) -> InvalidArgument:
    """Return the error for ``group=`` where no vector of this package is made, because only those have groups."""
    return InvalidArgument(
        f"{name}: group= is for vectors; give num_envs= too, and make sync and async vectors with "
        "envweave_gym.make"
    )
