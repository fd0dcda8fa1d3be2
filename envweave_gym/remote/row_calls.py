"""The calls of a remote vector: to the servers that are there, and what is said of the rows of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from envweave_gym.faults import Fault
from envweave_gym.remote.batches import batch_of, kept, part_of, rows_of
from envweave_gym.remote.row_ledger import RowLedger
from envweave_gym.remote.rows import RowGroup, RowReset, at_once, raise_refusal, reset_at_once
from envweave_gym.spaces import placeholder
from envweave_gym.stream import EventKind
from envweave_gym.vector_calls import Bools
from envweave_gym.wire.messages import Step
from envweave_gym.wire.values import pack

Given = Sequence[int | None] | None
_Infos = dict[int, dict[str, Any]]
"""Infos by the number of their row."""


@dataclass
class Outcome:
    """What a call gave for the rows of one group."""

    group: RowGroup
    observation: Any
    infos: dict[str, Any] = field(default_factory=dict[str, Any])
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    lost: _Infos = field(default_factory=_Infos)
    """What is said of rows that were lost, beside ``infos``."""
    final: _Infos = field(default_factory=_Infos)
    """What was said of rows that were lost and have been reset since, in the same step."""

    def __post_init__(self) -> None:
        if self.reward is None:
            self.reward = np.zeros(self.group.size)
        if self.terminated is None:
            self.terminated = np.zeros(self.group.size, np.bool_)
        if self.truncated is None:
            self.truncated = np.zeros(self.group.size, np.bool_)


class RowCalls:
    """Resets and steps the groups of a vector, all at once, and keeps going where some are lost."""

    def __init__(
        self,
        groups: Sequence[RowGroup],
        ledger: RowLedger,
        single_observation_space: Space[Any],
        single_action_space: Space[Any],
        action_space: Space[Any],
        check: Callable[[Any], None],
    ) -> None:
        """``check`` refuses wrong actions."""
        self._groups, self._ledger, self._check = groups, ledger, check
        self._observation_space, self._action_space = single_observation_space, single_action_space
        self._all_actions = action_space

    def act(self, actions: Any) -> list[Outcome]:
        """Step every group; one whose rows all wait for their reset in another session gets that."""
        live = [group for group in self._groups if group.live]
        calls = [self._step_of(group, actions) for group in live]
        replies = at_once([group.session() for group in live], calls)
        raise_refusal(replies)
        outcomes: list[Outcome] = []
        for group, reply in zip(live, replies, strict=True):
            if isinstance(reply, Exception):
                group.broken = group.lost(reply)
                outcomes.append(self._lost(group, EventKind.ACT, actions))
            else:
                outcomes.append(_acted(group, reply))
        if len(outcomes) < len(self._groups):
            outcomes += self._act_without(actions, {id(group) for group in live})
        return in_order(outcomes)

    def _step_of(self, group: RowGroup, actions: Any) -> Callable[[int], Step]:
        packed = pack(part_of(self._action_space, actions, group.rows) if len(self._groups) > 1 else actions)
        return lambda number: Step(number, packed)

    def _act_without(self, actions: Any, done: set[int]) -> list[Outcome]:
        """A step of groups without a session."""
        left = [group for group in self._groups if id(group) not in done]
        outcomes = [self._lost(group, EventKind.IGNORED, actions) for group in left if group.broken]
        anew = [group for group in left if not any(one.group is group for one in outcomes)]
        if anew:
            rows = np.zeros_like(self._ledger.over)
            for group in anew:
                rows[group.rows] = True
            outcomes += self.reset(rows, self._ledger.draws(before=self._ledger.over))
        return outcomes

    def _lost(self, group: RowGroup, kind: EventKind, actions: Any) -> Outcome:
        """End the episodes of a broken group; a row whose step was to be a reset ends where it began."""
        fault, ledger = group.broken, self._ledger
        self._check(actions)
        assert fault is not None
        acted, group.broken = list(iterate(self._all_actions, actions)), None
        lost = {
            row: ledger.lost_at_start(row, fault)
            if ledger.over[row]
            else ledger.lost(row, fault, kind, acted[row])
            for row in group.numbers
        }
        return Outcome(group, kept(group.last), truncated=np.ones(group.size, np.bool_), lost=lost)

    # Resets

    def reset(
        self, rows: Bools, draws: NDArray[np.uint64], given: Given = None, options: Any = None
    ) -> list[Outcome]:
        """Reset ``rows``, with the seeds given or else drawn from ``draws``; the groups that have any."""
        outcomes: list[Outcome] = []
        resets: list[RowReset] = []
        for group in self._groups:
            part = rows[group.rows]
            if not part.any():
                continue
            if not part.all() and not group.live:
                self._reset_beforehand(group, draws)
            if group.broken and not part.all():
                outcomes.append(self._lost_reset(group, rows, options))
            else:
                seeds = None if given is None else list(given[group.rows])
                resets.append(self._reset_of(group, part, draws, seeds, options))
        outcomes += [
            self._began(one, result, rows, options)
            for one, result in zip(resets, reset_at_once(resets), strict=True)
        ]
        return in_order(outcomes)

    def _reset_of(
        self, group: RowGroup, part: Bools, draws: NDArray[np.uint64], seeds: Given, options: Any
    ) -> RowReset:
        told = {"seed": seeds, "draws": draws[group.rows], "over": self._ledger.over[group.rows]}
        anew = bool(part.all())
        if not anew:
            options = {**(options or {}), "reset_mask": part}
        return RowReset(group, pack(told), options, anew)

    def _reset_beforehand(self, group: RowGroup, draws: NDArray[np.uint64]) -> None:
        """Open a session for a few rows of a lost group; the others go on waiting for a reset of theirs.

        A loss that no step has told yet comes first: it is said of those few as well.
        """
        if group.broken:
            group.faults.add(group.broken)
            return
        everyone = np.ones(group.size, np.bool_)
        result = reset_at_once([self._reset_of(group, everyone, draws, None, None)])[0]
        if isinstance(result, Fault):
            group.broken = result
        else:
            group.live, group.resumed = True, True

    def _began(self, reset: RowReset, result: Any, rows: Bools, options: Any) -> Outcome:
        group = reset.group
        if isinstance(result, Fault):
            group.broken = result
            return self._lost_reset(group, rows, options)
        observation = result.observation
        if group.resumed:
            group.resumed, part = False, rows[group.rows]
            new = rows_of(self._observation_space, observation, group.size)
            observation = self._mixed(group, part, new)
        group.live, group.broken, group.last = True, None, kept(observation)
        return Outcome(group, observation, result.info)

    def _lost_reset(self, group: RowGroup, rows: Bools, options: Any) -> Outcome:
        """A reset that could not be had: the next step ends all episodes of the group."""
        fault, part = group.broken, rows[group.rows]
        assert fault is not None
        group.live = False
        group.last = self._mixed(group, part, [placeholder(self._observation_space)] * group.size)
        numbers = [row for row in group.numbers if rows[row]]
        lost = {row: self._ledger.lost_start(row, fault, options) for row in numbers}
        return Outcome(group, kept(group.last), lost=lost)

    def _mixed(self, group: RowGroup, part: Bools, new: Sequence[Any]) -> Any:
        """The last observations, with those of the rows in ``part`` replaced."""
        space = self._observation_space
        old = new if group.last is None else rows_of(space, group.last, group.size)
        return batch_of(
            space, [one if reset else other for one, other, reset in zip(new, old, part, strict=True)]
        )

    def reset_lost(self, outcomes: Sequence[Outcome]) -> None:
        """Reset the rows that were lost in this step; what was said of them becomes what was said last."""
        rows = np.zeros_like(self._ledger.over)
        lost = [one for one in outcomes if one.lost]
        for one in lost:
            rows[one.group.rows] = True
        resets = self.reset(rows, self._ledger.draws(before=rows)) if lost else []
        for one, anew in zip(lost, resets, strict=True):
            last = rows_of(self._observation_space, one.observation, one.group.size)
            one.final = {
                row: {"final_obs": seen, "final_info": info}
                for seen, (row, info) in zip(last, one.lost.items(), strict=True)
            }
            one.observation, one.infos, one.lost = anew.observation, anew.infos, anew.lost


def _acted(group: RowGroup, reply: Any) -> Outcome:
    over = reply.terminated | reply.truncated
    if over.any() and "fault" not in reply.info:
        group.faults.clear()
    group.last = kept(reply.observation)
    return Outcome(group, reply.observation, reply.info, reply.reward, reply.terminated, reply.truncated)


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes in the order of their rows."""
    return sorted(outcomes, key=lambda one: one.group.rows.start)
