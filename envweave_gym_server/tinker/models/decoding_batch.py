"""The state of a sampling batch: keys and values of prompts and continuations, and the pass that extends them.

Attention is over three segments: the tokens that all prompts begin with, the rest of a row's prompt, and the row's
own continuation. A row is a distinct continuation of a distinct prompt; sequences that are equal so far share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from envweave_gym_server.tinker.models.llama import (
    WRITTEN_OUT_TOKENS,
    LowRankWeights,
    ModelConfig,
    Projections,
    Transformer,
)
from envweave_gym_server.tinker.models.prefix_packing import common_prefix_length, cut_by_nodes, pack
from envweave_gym_server.tinker.models.row_groups import Indices, assign_slots, rank_in_group

CACHE_BYTES = 2**30
"""Most memory for the keys and values of a batch."""
_PREFILL_TOKENS = WRITTEN_OUT_TOKENS
"""Most tokens of prompts in one pass, unless a prompt is longer."""
_FIRST_CAPACITY = 16
"""Tokens of a continuation that the cache has space for at first; the space is doubled when it is full."""


def token_limit(config: ModelConfig) -> int:
    """Return how many tokens' keys and values a batch may hold."""
    return CACHE_BYTES // (config.layers * config.key_value_heads * config.head_size * 2 * 4)


class _Segment(NamedTuple):
    """Keys and values of one layer: (heads, tokens, size), or (heads, prompts, tokens, size)."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class _Grid:
    """Rows arranged by prompt, (prompts, columns): rows of one prompt multiply its keys together."""

    rows: Tensor
    """(prompts * columns) row in each cell of the grid; empty cells have row 0."""
    cells: Tensor
    """(rows) cell of each row."""
    columns: int


class DecodingBatch:
    """Distinct prompts and their distinct continuations, which grow by one token at a time."""

    def __init__(
        self,
        transformer: Transformer,
        weights: LowRankWeights,
        prompts: Sequence[Sequence[int]],
        most_rows: int,
    ) -> None:
        """Compute the prompts, which must be distinct and sorted; there will be at most ``most_rows`` rows."""
        self._transformer, self._weights, self._most_rows = transformer, weights, most_rows
        self._lengths = np.array([len(prompt) for prompt in prompts])
        first, last = (np.asarray(prompts[index], np.int64) for index in (0, -1))
        self._common_length = common_prefix_length(first, last)
        self.prompt_hidden: list[Tensor] = []
        """Final hidden states (tokens, width) of each prompt."""
        self._common: list[_Segment] = []
        self._rest: list[_Segment] = []
        self._prefill(prompts)
        self.prompt_logits = transformer.logits(torch.stack([row[-1] for row in self.prompt_hidden]), weights)
        self._rest_bias = self._bias()
        self._prompt_of_row = np.arange(len(prompts))
        self._steps = 0
        self._own = self._space(0)
        self._grid: _Grid | None = None

    def rows_that_fit(self, sequences: int) -> int:
        """Return how many of the sequences can be extended by one more token: one at least."""
        rest = len(self._lengths) * int(self._lengths.max() - self._common_length)
        free = token_limit(self._transformer.config) - self._common_length - rest
        return max(1, min(sequences, free // (self._steps + 1)))

    def extend(self, rows: Indices, tokens: Indices) -> tuple[Tensor, Indices]:
        """Append a token to the row of each sequence; return the new rows' logits, and each sequence's row."""
        vocabulary = self._transformer.config.vocabulary
        codes, new_row_of = np.unique(rows * vocabulary + tokens, return_inverse=True)
        parents = codes // vocabulary
        slots, moved = assign_slots(parents)
        # Later there are at most as many rows as sequences now: those that have ended need no more space.
        self._most_rows = max(len(rows), len(self._prompt_of_row))
        self._copy_rows(parents[moved], slots[moved])
        order = np.argsort(slots)
        self._prompt_of_row = self._prompt_of_row[parents[order]]
        self._grid = self._arranged()
        logits = self._pass(torch.from_numpy(codes[order] % vocabulary))
        self._steps += 1
        return logits, slots[new_row_of.reshape(-1)]

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run the model on the prompts, and store their keys and values in ``_common`` and ``_rest``, for each layer.

        ``_common`` is for the prefix that all prompts share, ``_rest`` for what follows it. The prompts go in pieces
        of at most :data:`_PREFILL_TOKENS` tokens, up to which attention without torch's fused kernel is faster.
        """
        pieces: list[list[_Segment]] = []
        for indices in cut_by_nodes(prompts, _PREFILL_TOKENS):
            packed = pack([prompts[index] for index in indices])
            computed: list[_Segment] = []
            hidden = self._transformer.forward(
                packed,
                self._weights,
                on_layer=lambda part, computed=computed: computed.append(_Segment(part.keys, part.values)),
            )
            self.prompt_hidden += [hidden[torch.from_numpy(path)] for path in packed.paths]
            if not self._common:
                shared = torch.from_numpy(packed.paths[0][: self._common_length])
                self._common = [
                    _Segment(*(part[shared].transpose(0, 1) for part in layer)) for layer in computed
                ]
            pieces.append(self._rests(computed, packed.paths))
        self._rest = [
            _Segment(*(torch.cat(part, 1) for part in zip(*layer, strict=True)))
            for layer in zip(*pieces, strict=True)
        ]

    def _rests(self, computed: list[_Segment], paths: list[Indices]) -> list[_Segment]:
        """Return the keys and values (heads, prompts, tokens, size) after the common ones, padded with token 0."""
        nodes = np.zeros((len(paths), int(self._lengths.max()) - self._common_length), np.int64)
        for row, path in zip(nodes, paths, strict=True):
            row[: len(path) - self._common_length] = path[self._common_length :]
        index = torch.from_numpy(nodes)
        return [_Segment(*(part[index].permute(2, 0, 1, 3) for part in layer)) for layer in computed]

    def _bias(self) -> Tensor | None:
        """Return minus infinity (prompts, 1, tokens) where a prompt is padded; ``None`` if none is."""
        rests = torch.from_numpy(self._lengths - self._common_length)
        if bool((rests == rests[0]).all()):
            return None
        padded = torch.arange(int(rests.max())) >= rests[:, None]
        return torch.zeros(padded.shape).masked_fill_(padded, -math.inf)[:, None]

    def _space(self, capacity: int) -> _Segment:
        """Return space for continuations: (layers, heads, rows, capacity, size)."""
        config = self._transformer.config
        shape = (config.layers, config.key_value_heads, self._most_rows, capacity, config.head_size)
        return _Segment(torch.empty(shape), torch.empty(shape))

    def _copy_rows(self, sources: Indices, targets: Indices) -> None:
        """Copy the continuations of rows to other slots, and make space for one more token."""
        steps = self._steps
        if steps == self._own.keys.shape[3]:
            space = self._space(min(max(_FIRST_CAPACITY, 2 * steps), self._transformer.config.context))
            rows = len(self._prompt_of_row)
            for old, new in zip(self._own, space, strict=True):
                new[:, :, :rows, :steps] = old[:, :, :rows]
            self._own = space
        if steps and len(sources):
            for part in self._own:
                part[:, :, targets, :steps] = part[:, :, sources, :steps]

    def _arranged(self) -> _Grid:
        columns = rank_in_group(self._prompt_of_row)
        width = int(columns.max()) + 1
        cells = self._prompt_of_row * width + columns
        rows = np.zeros(len(self._lengths) * width, np.int64)
        rows[cells] = np.arange(len(cells))
        return _Grid(torch.from_numpy(rows), torch.from_numpy(cells), width)

    def _pass(self, tokens: Tensor) -> Tensor:
        """Return the logits after one more token of each row."""
        transformer = self._transformer
        positions = torch.from_numpy(self._lengths[self._prompt_of_row] + self._steps)
        hidden = transformer.embedding[tokens]
        for layer in range(transformer.config.layers):
            hidden = transformer.layer(
                layer, hidden, positions=positions, adapter=self._weights, attend=self._attend
            )
        return transformer.logits(transformer.normalised(hidden, transformer.final_norm), self._weights)

    def _attend(self, layer: int, projections: Projections) -> Tensor:
        """Store the rows' new keys and values, and attend to all tokens of each row."""
        count, steps = len(projections.keys), self._steps
        own = _Segment(*(part[layer, :, :count, : steps + 1] for part in self._own))
        own.keys[:, :, steps] = projections.keys.transpose(0, 1)
        own.values[:, :, steps] = projections.values.transpose(0, 1)
        heads = self._transformer.config.key_value_heads
        queries = projections.queries.unflatten(1, (heads, -1)).transpose(
            0, 1
        )  # (heads, rows, repeats, size)
        queries = queries / math.sqrt(queries.shape[-1])
        scores = [
            (queries.flatten(1, 2) @ self._common[layer].keys.transpose(1, 2)).unflatten(
                1, queries.shape[1:3]
            ),
            self._rest_scores(queries, self._rest[layer].keys),
            queries @ own.keys.transpose(2, 3),
        ]
        shares = torch.cat(scores, -1).softmax(-1).split([score.shape[-1] for score in scores], -1)
        attended = (shares[0].flatten(1, 2) @ self._common[layer].values).unflatten(1, queries.shape[1:3])
        attended = attended + shares[2] @ own.values
        if shares[1].shape[-1]:
            attended = attended + self._by_prompt(shares[1], self._rest[layer].values)
        return attended.transpose(0, 1).flatten(1)

    def _rest_scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (heads, rows, repeats, tokens) of the rest of each row's prompt."""
        if not keys.shape[2]:
            return queries[..., :0]
        return self._by_prompt(queries, keys.transpose(2, 3), self._rest_bias)

    def _by_prompt(self, rows: Tensor, factors: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply rows (heads, rows, repeats, n) by their prompts' factors (heads, prompts, n, m)."""
        assert self._grid is not None
        shape = (factors.shape[1], self._grid.columns * rows.shape[2])
        arranged = rows[:, self._grid.rows].reshape(len(rows), *shape, rows.shape[3])
        product = arranged @ factors if bias is None else arranged @ factors + bias
        return product.reshape(len(rows), -1, rows.shape[2], product.shape[-1])[:, self._grid.cells]
