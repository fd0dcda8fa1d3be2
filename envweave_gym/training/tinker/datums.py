"""Token rows of episodes, group-centred advantages, and their conversion to the SDK's ``Datum`` objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from envweave_gym.core.faults import need

EQUAL = 1e-9
"""Rewards of a group that differ by less than this are equal: rounding of their mean must teach nothing."""


@dataclass
class TokenRow:
    """Tokens of one or more turns, in order: prompts and sampled replies, which alone are trained.

    ``spans`` has the first index and the end of each reply. ``logprobs`` is aligned with ``tokens``, and 0 for the
    tokens of prompts.
    """

    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def add_prompt(self, tokens: Sequence[int]) -> None:
        """Append tokens that the model reads."""
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)

    def add_reply(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append the sampled tokens of a reply with the sampler's log-probabilities, as they were returned."""
        self.spans.append((len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens
        self.logprobs += logprobs

    def until_last_reply(self) -> TokenRow:
        """Return the row without the tokens after its last reply."""
        end = self.spans[-1][1]
        return TokenRow(self.tokens[:end], self.logprobs[:end], self.spans)

    @property
    def sampled(self) -> int:
        """The number of sampled tokens."""
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True)
class TrainingRow:
    """A token row with the advantage of each of its replies."""

    row: TokenRow
    advantages: tuple[float, ...]
    group: int = 0
    """The group of its episode; the rows of a group are trained in the same step."""

    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which targets were sampled; the targets are the tokens from the second one on."""
        mask = np.zeros(len(self.row.tokens), np.bool_)
        for start, end in self.row.spans:
            mask[start:end] = True
        return mask[1:]

    def datum(self) -> Any:
        """Return the row as a ``tinker.Datum``, whose targets are its tokens shifted by one position."""
        types = need("tinker.types", "tinker", "training with Tinker")
        tokens, advantages = self.row.tokens, np.zeros(len(self.row.tokens), np.float32)
        for (start, end), advantage in zip(self.row.spans, self.advantages, strict=True):
            advantages[start:end] = advantage
        inputs = {
            "target_tokens": np.array(tokens[1:], np.int64),
            "logprobs": np.array(self.row.logprobs[1:], np.float32),
            "advantages": advantages[1:],
        }
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def centred(rewards: Sequence[float]) -> list[float]:
    """Return each reward less the mean of the group; all are exactly 0 if the rewards are equal."""
    if not rewards or max(rewards) - min(rewards) < EQUAL:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def with_entropy_bonus(
    row: TokenRow, advantage: float, weight: float, mean_logprob: float, group: int = 0
) -> TrainingRow:
    """Return the row for training, with an entropy bonus on the advantage of each reply.

    The bonus is ``-weight * (logprob of the reply - mean_logprob)``, the score-function gradient of the entropy of
    replies with a baseline.
    """
    bonuses = (
        weight * (mean_logprob - sum(row.logprobs[start:end])) if weight else 0.0 for start, end in row.spans
    )
    return TrainingRow(row, tuple(advantage + bonus for bonus in bonuses), group)


def in_parts(rows: Sequence[TrainingRow], count: int) -> list[list[TrainingRow]]:
    """Return at most ``count`` parts of whole groups: the advantages of each part remain centred."""
    groups = list(dict.fromkeys(row.group for row in rows))
    chosen = [set(groups[part::count]) for part in range(count)]
    return [[row for row in rows if row.group in part] for part in chosen if part]


def mean_reply_logprob(rows: Sequence[TokenRow]) -> float:
    """Return the mean over the replies of ``rows`` of their log-probability, the sum over their tokens."""
    sums = [sum(row.logprobs[start:end]) for row in rows for start, end in row.spans]
    return sum(sums) / len(sums) if sums else 0.0
