"""Packing of token sequences so that every distinct prefix is computed once, as the nodes of a trie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK_TOKENS = 64
"""Nodes of a block: measured on CPU, training takes a few percent more with half or twice as many."""
_SIZE_MULTIPLE = 16
"""Sizes of a block are multiples of this: in "medium" precision torch compiles and keeps kernels for each new shape."""


@dataclass(frozen=True)
class Blocks:
    """Intervals of nodes of one length, which attend each to what its nodes see, so that the cost follows the trie.

    In depth-first order, a node sees nodes of its own interval, and ancestors of the interval's first node.
    """

    seen: Tensor
    """(blocks, seen) nodes that are ancestors of the block's first node, and the block's own."""
    bias: Tensor
    """(blocks, length, seen) 0 where a node sees another one, itself or an ancestor, and minus infinity elsewhere."""


@dataclass(frozen=True)
class PackedTokens:
    """The nodes of a trie in depth-first order: each is one token after one distinct prefix."""

    tokens: Tensor
    """(N,) token of each node."""
    positions: Tensor
    """(N,) depth of each node, its position in a sequence."""
    ends: NDArray[np.int64]
    """(N,) of each node: the first later node that does not descend from it."""
    paths: list[NDArray[np.int64]]
    """Nodes of each sequence's tokens, in the order the sequences were given in."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_one_sequence(self) -> bool:
        """Whether no node has two children, and all begin with the same token."""
        return bool((self.ends == len(self)).all())

    def blocks(self) -> Blocks:
        """Cut the nodes into blocks of :data:`BLOCK_TOKENS`; into a single one if that costs less."""
        count = len(self)
        starts = range(0, count, BLOCK_TOKENS)
        ancestors = [np.flatnonzero(self.ends[:start] > start) for start in starts]
        most = _rounded_up(max(map(len, ancestors), default=0))
        if most + BLOCK_TOKENS >= count:
            return _blocks(self.ends, [np.empty(0, np.int64)], 0, _rounded_up(count))
        return _blocks(self.ends, ancestors, most, BLOCK_TOKENS)


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
        ends[:count],
        paths,
    )


def _blocks(ends: NDArray[np.int64], ancestors: list[NDArray[np.int64]], most: int, length: int) -> Blocks:
    """Make blocks of ``length`` nodes; each sees the ancestors of its first one, padded to ``most``, and its own.

    Nodes that pad the last block see themselves, because a softmax over nothing is not a number.
    """
    total = length * len(ancestors)
    nodes = np.arange(total).reshape(len(ancestors), 1, length)
    above = np.full((len(ancestors), 1, most), total)
    for row, own in zip(above, ancestors, strict=True):
        row[0, : len(own)] = own
    seen = np.concatenate([above, nodes], 2)
    padded_ends = np.concatenate([ends, np.full(total + 1 - len(ends), total)])
    nodes = nodes.transpose(0, 2, 1)
    visible = torch.from_numpy((seen <= nodes) & (nodes < padded_ends[seen]))
    bias = torch.zeros(visible.shape).masked_fill_(~visible, -math.inf)
    return Blocks(torch.from_numpy(np.minimum(seen[:, 0], len(ends) - 1)), bias)


def _rounded_up(size: int) -> int:
    return size + -size % _SIZE_MULTIPLE


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
