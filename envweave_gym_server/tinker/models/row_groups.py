"""Bookkeeping of the rows of a decoding batch, whose members share what they have in common."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def rank_in_group(groups: Indices) -> Indices:
    """Return for each member how many members before it have the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.searchsorted(ordered, ordered)
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - starts
    return ranks


def assign_slots(parents: Indices) -> tuple[Indices, NDArray[np.bool_]]:
    """Assign the slots 0 to n - 1 of a cache to n children, given their parents' slots.

    The first child of a parent stays in its slot if that is below n. Returns each child's slot, and which children
    are not in their parent's slot; no slot of such a child is the slot of a parent.
    """
    count = len(parents)
    stays = np.zeros(count, np.bool_)
    stays[np.unique(parents, return_index=True)[1]] = True
    stays &= parents < count
    slots = parents.copy()
    slots[~stays] = np.setdiff1d(np.arange(count), parents[stays])
    return slots, ~stays
