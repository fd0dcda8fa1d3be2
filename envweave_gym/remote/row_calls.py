"""Resets and steps of a remote vector over all its servers, and the results of rows whose server is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault
from envweave_gym.core.spaces import placeholder
from envweave_gym.episode.columns import Bools, Options, RecordColumns, options_of
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.vector_infos import VectorInfos, infos_of_rows
from envweave_gym.remote.batches import batch_of, kept, part_of, rows_of
from envweave_gym.remote.rows import RowGroup, RowReset, raise_refusal, reset_at_once
from envweave_gym.remote.session import at_once
from envweave_gym.wire.messages import Step
from envweave_gym.wire.values import pack

_Infos = dict[int, dict[str, Any]]
"""Infos by the number of their row."""


class Outcome:
    """The result of a call for the rows of one group; without a ``reply`` no episode has ended in them."""

    lost: _Infos = {}
    """The infos of rows that were lost, which are in ``infos`` too."""

    def __init__(self, group: RowGroup, observation: Any, infos: dict[str, Any], reply: Any = None) -> None:
        self.group, self.observation, self.infos = group, observation, infos
        if reply is not None:
            self.reward, self.terminated, self.truncated = reply.reward, reply.terminated, reply.truncated
        else:
            self.reward = np.zeros(group.size)
            self.terminated, self.truncated = np.zeros((2, group.size), np.bool_)


def _lost_outcome(group: RowGroup, lost: _Infos) -> Outcome:
    """The outcome of a group whose rows were lost: the last observations, and infos that say so."""
    infos = infos_of_rows([lost.get(row) for row in group.numbers])
    outcome = Outcome(group, kept(group.last), infos)
    outcome.lost = lost
    return outcome


class Draws(NamedTuple):
    """The seeds that rows begin with when they are reset now."""

    states: NDArray[np.uint64]
    """The state that each row draws its seed from, so that a server can go on drawing."""
    seeds: NDArray[np.uint64]

    @classmethod
    def upcoming(cls, record: RecordColumns) -> Draws:
        """The seeds of rows that reset themselves; they are drawn once the step has been counted."""
        return cls(record.draws.states.copy(), record.draws.upcoming())

    @classmethod
    def of_reset(cls, record: RecordColumns, rows: Bools, given: Sequence[int | None] | None) -> Draws:
        """Draw the seeds of a reset by hand, unless they are given."""
        before, seeds = record.draws.states.copy(), np.zeros(len(rows), np.uint64)
        seeds[rows] = record.draws.next(rows.nonzero()[0], given)
        return cls(before, seeds)


class Wanted(NamedTuple):
    """A reset of some rows, with the seeds that are given or else drawn."""

    rows: Bools
    draws: Draws
    given: Sequence[int | None] | None = None
    options: Options = None


class RowCalls:
    """Resets and steps the groups of a vector, all at once, and keeps going where some are lost."""

    goes_on = False
    """Whether rows that had a seed before are reset without one, so that their generators go on."""

    def __init__(
        self,
        groups: Sequence[RowGroup],
        record: RecordColumns,
        single_observation_space: Space[Any],
        single_action_space: Space[Any],
        rows_of_actions: Callable[[Any], list[Any]],
    ) -> None:
        """``rows_of_actions`` gives the action of each row, and refuses wrong ones."""
        self._groups, self._record, self._rows_of_actions = groups, record, rows_of_actions
        self._observation_space, self._action_space = single_observation_space, single_action_space

    def act(self, actions: Any, resting: Bools | None = None) -> list[Outcome]:
        """Step every group; one whose rows all wait for their reset in another session gets that.

        A group whose rows are all ``resting`` is left alone: the caller resets them next.
        """
        left = [] if resting is None else [one for one in self._groups if resting[one.rows].all()]
        live = [group for group in self._groups if group.live and group not in left]
        calls = [self._step_of(group, actions) for group in live]
        replies = at_once([group.session() for group in live], calls)
        raise_refusal(replies)
        outcomes = [Outcome(group, kept(group.last), {}) for group in left]
        for group, reply in zip(live, replies, strict=True):
            if isinstance(reply, Exception):
                group.broken = group.lost(reply)
                outcomes.append(self._lost(group, actions, is_ignored=False))
            else:
                outcomes.append(_acted(group, reply))
        if len(outcomes) < len(self._groups):
            outcomes += self._act_without(actions, {id(group) for group in (*live, *left)})
        return in_order(outcomes)

    def _step_of(self, group: RowGroup, actions: Any) -> Step:
        packed = pack(part_of(self._action_space, actions, group.rows) if len(self._groups) > 1 else actions)
        return Step(0, packed)

    def _act_without(self, actions: Any, done: set[int]) -> list[Outcome]:
        """A step of groups without a session."""
        left = [group for group in self._groups if id(group) not in done]
        outcomes = [self._lost(group, actions, is_ignored=True) for group in left if group.broken]
        anew = [group for group in left if not any(one.group is group for one in outcomes)]
        return outcomes + (self._reset_groups(anew) if anew else [])

    def _lost(self, group: RowGroup, actions: Any, *, is_ignored: bool) -> Outcome:
        """End the episodes of a broken group; a row whose step was to be a reset ends where it began."""
        fault, record = group.broken, self._record
        assert fault is not None
        acted, group.broken = self._rows_of_actions(actions), None
        seeds: list[Any] = [None] * len(acted) if self.goes_on else record.draws.upcoming().tolist()
        lost = {
            row: EpisodeRecord().lost_at_start(fault, seeds[row])
            if record.over[row]
            else record.lost_step(row, fault, acted[row], is_ignored=is_ignored)
            for row in group.numbers
        }
        outcome = _lost_outcome(group, lost)
        outcome.truncated[:] = True
        return outcome

    # Resets

    def reset(self, wanted: Wanted) -> list[Outcome]:
        """Reset rows; the outcomes of the groups that have any."""
        outcomes: list[Outcome] = []
        resets: list[RowReset] = []
        for group in self._groups:
            part = wanted.rows[group.rows]
            if not part.any():
                continue
            if not part.all() and not group.live:
                self._reset_beforehand(group, wanted)
            if group.broken and not part.all():
                outcomes.append(self._lost_reset(group, wanted))
            else:
                resets.append(self._reset_of(group, wanted))
        results = reset_at_once(resets)
        outcomes += [
            self._began(one.group, result, wanted) for one, result in zip(resets, results, strict=True)
        ]
        return in_order(outcomes)

    def _reset_groups(self, groups: Sequence[RowGroup]) -> list[Outcome]:
        """Reset groups as they would reset themselves."""
        rows = np.zeros_like(self._record.over)
        for group in groups:
            rows[group.rows] = True
        return self.reset(Wanted(rows, Draws.upcoming(self._record)))

    def _reset_of(self, group: RowGroup, wanted: Wanted) -> RowReset:
        part, given, options = wanted.rows[group.rows], wanted.given, wanted.options
        if isinstance(options, list):
            options = {"rows": options[group.rows]}
        seeding = {
            "seed": None if given is None else list(given[group.rows]),
            "draws": wanted.draws.states[group.rows],
            "over": self._record.over[group.rows],
            "goes_on": self.goes_on,
        }
        anew = bool(part.all())
        if not anew:
            options = {**(options or {}), "reset_mask": part}
        return RowReset(group, pack(seeding), options, anew)

    def _reset_beforehand(self, group: RowGroup, wanted: Wanted) -> None:
        """Open a session for a few rows of a lost group; the others go on waiting for a reset of theirs.

        A loss that no step has reported yet comes first: those few rows report it as well.
        """
        if group.broken:
            group.faults.add(group.broken)
            return
        everyone = Wanted(np.ones_like(wanted.rows), wanted.draws)
        result = reset_at_once([self._reset_of(group, everyone)])[0]
        if isinstance(result, Fault):
            group.broken = result
        else:
            group.live, group.resumed = True, True

    def _began(self, group: RowGroup, result: Any, wanted: Wanted) -> Outcome:
        if isinstance(result, Fault):
            group.broken = result
            return self._lost_reset(group, wanted)
        observation = result.observation
        if group.resumed:
            group.resumed = False
            new = rows_of(self._observation_space, observation, group.size)
            observation = self._mixed(group, wanted, new)
        group.live, group.broken, group.last = True, None, kept(observation)
        return Outcome(group, observation, result.info)

    def _lost_reset(self, group: RowGroup, wanted: Wanted) -> Outcome:
        """A reset that could not be had: the next step ends all episodes of the group."""
        fault, seeds = group.broken, wanted.draws.seeds
        assert fault is not None
        group.live = False
        group.last = self._mixed(group, wanted, [placeholder(self._observation_space)] * group.size)
        numbers = [row for row in group.numbers if wanted.rows[row]]
        lost = {
            row: EpisodeRecord().lost_reset(fault, int(seeds[row]), options_of(wanted.options, row))
            for row in numbers
        }
        return _lost_outcome(group, lost)

    def _mixed(self, group: RowGroup, wanted: Wanted, new: Sequence[Any]) -> Any:
        """The last observations, with those of the rows that were to be reset replaced."""
        space = self._observation_space
        old = new if group.last is None else rows_of(space, group.last, group.size)
        rows = zip(wanted.rows[group.rows], new, old, strict=True)
        return batch_of(space, [one if reset else other for reset, one, other in rows])

    def reset_lost(self, outcomes: Sequence[Outcome]) -> None:
        """Reset the rows that were lost in this step; their infos become those of the ended episode."""
        lost = [one for one in outcomes if one.lost]
        resets = self._reset_groups([one.group for one in lost]) if lost else []
        for one, anew in zip(lost, resets, strict=True):
            last = rows_of(self._observation_space, one.observation, one.group.size)
            ended = zip(last, one.lost.values(), strict=True)
            final = infos_of_rows([{"final_obs": seen, "final_info": info} for seen, info in ended])
            one.observation, one.infos = anew.observation, VectorInfos(anew.infos | final)


def _acted(group: RowGroup, reply: Any) -> Outcome:
    if group.shaky and "fault" not in reply.info and (reply.terminated.any() or reply.truncated.any()):
        group.shaky = False
        group.faults.clear()
    group.last = kept(reply.observation)
    return Outcome(group, reply.observation, reply.info, reply)


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes in the order of their rows."""
    return sorted(outcomes, key=lambda one: one.group.rows.start)
