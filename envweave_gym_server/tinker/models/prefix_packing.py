"""Packing of token sequences so that every distinct prefix is computed once, as the nodes of a trie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class PackedTokens:
    """The nodes of a trie in depth-first order: each is one token after one distinct prefix."""

    tokens: Tensor
    """(N,) token of each node."""
    positions: Tensor
    """(N,) depth of each node, its position in a sequence."""
    mask: Tensor | None
    """(N, N) whether a node sees another one: itself and its ancestors. ``None`` if the trie is one sequence."""
    paths: list[NDArray[np.int64]]
    """Nodes of each sequence's tokens, in the order the sequences were given in."""

    def __len__(self) -> int:
        return len(self.tokens)


def pack(sequences: Sequence[Sequence[int]]) -> PackedTokens:
    """Pack sequences into one trie.

    Sorted sequences differ from their predecessor in a suffix only, so that their new nodes follow in depth-first
    order, and the descendants of a node are an interval.
    """
    rows = [np.asarray(sequence, np.int64) for sequence in sequences]
    paths: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(rows)
    suffixes: list[NDArray[np.int64]] = []
    ends = np.empty(
        sum(map(len, rows)), np.int64
    )  # of a node: the first later node that does not descend from it
    path, previous, count = np.empty(0, np.int64), np.empty(0, np.int64), 0
    for index in sorted(range(len(rows)), key=lambda index: rows[index].tolist()):
        row = rows[index]
        shared = common_prefix_length(previous, row)
        ends[path[shared:]] = count
        suffixes.append(row[shared:])
        path = np.concatenate([path[:shared], np.arange(count, count + len(row) - shared)])
        paths[index], previous, count = path, row, count + len(row) - shared
    ends[path] = count
    positions = np.empty(count, np.int64)
    for path in paths:
        positions[path] = np.arange(len(path))
    return PackedTokens(
        torch.from_numpy(np.concatenate([*suffixes, np.empty(0, np.int64)])),
        torch.from_numpy(positions),
        _mask(torch.from_numpy(ends[:count])),
        paths,
    )


def _mask(ends: Tensor) -> Tensor | None:
    count = len(ends)
    if bool((ends == count).all()):
        return None
    nodes = torch.arange(count)
    return (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < ends[None, :])


def common_prefix_length(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    shortest = min(len(first), len(second))
    different = np.flatnonzero(first[:shortest] != second[:shortest])
    return int(different[0]) if len(different) else shortest


def cut_by_nodes(sequences: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Yield the indices of consecutive sequences whose trie has at most ``budget`` nodes, or of a single one.

    The sequences must be sorted, so that neighbours share their prefixes.
    """
    piece: list[int] = []
    nodes, previous = 0, np.empty(0, np.int64)
    for index, sequence in enumerate(sequences):
        row = np.asarray(sequence, np.int64)
        added = len(row) - common_prefix_length(previous, row)
        if piece and nodes + added > budget:
            yield piece
            piece, nodes, added = [], 0, len(row)
        piece.append(index)
        nodes, previous = nodes + added, row
    if piece:
        yield piece
