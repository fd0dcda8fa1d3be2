"""Base classes of vectors: checks of a call, groups of rows, and the sequence of operations in a step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from envweave_gym.core.actions import REFUSED, admission
from envweave_gym.core.array_conversion import adapt_converters
from envweave_gym.core.faults import InvalidAction, shown
from envweave_gym.core.protocols import state_of
from envweave_gym.episode.columns import Bools, Options, RecordColumns, Rows
from envweave_gym.episode.vector_infos import VectorInfos
from envweave_gym.vector.group_faults import GroupFaults
from envweave_gym.vector.reset_arguments import ResetCall, as_batch, read_reset
from envweave_gym.vector.row_groups import Groups

NOT_A_BATCH = (TypeError, ValueError, KeyError, IndexError, AttributeError, CustomSpaceError)
"""Exceptions that Gymnasium's ``iterate`` raises if its argument is not a batch of actions."""
Results = tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]


class CheckedVector(VectorEnv[Any, Any, Any]):
    """Base class of vectors that refuse an invalid call before any row has moved.

    If a row is lost, the other rows of its group are ended and reset with it, so that a group always plays one task.
    """

    name: str = "this vector"
    groups: Groups | None = None
    """Groups of rows that play the same episodes, if ``make`` was called with ``group=``, else ``None``."""
    _record: RecordColumns
    _admit: Callable[[Any], Any] | None = None

    def _read_reset(self, seed: Any, options: Any) -> ResetCall:
        """Check the arguments of a reset, and cancel pending resets of the groups that it resets."""
        begun = self._record.has_begun
        call = read_reset(
            self.name, self.num_envs, seed, options, self.metadata, begun=begun, groups=self.groups
        )
        if self.groups is not None:
            self._group_faults.forget(call.mask)
        return call

    def _checked_actions(self, actions: Any) -> Any:
        """Check the actions, and return them as one batch."""
        self._record.check_step(self.name)
        actions = as_batch(actions)
        self._rows_of_actions(actions)
        return actions

    def _rows_of_actions(self, actions: Any) -> list[Any]:
        """Split a batch into the action of each row; raise ``InvalidAction`` if one is not in the space."""
        no_rows = isinstance(actions, str | Set) or (
            isinstance(actions, Mapping) and not isinstance(self.action_space, gym.spaces.Dict)
        )
        try:
            rows = [] if no_rows else list(iterate(self.action_space, actions))
        except NOT_A_BATCH:
            rows = []
        if len(rows) != self.num_envs:
            raise InvalidAction(f"{self.name}: actions {shown(actions)} are not in {self.action_space}")
        if self._admit is None:
            self._admit = admission(self.single_action_space)
        for row, action in enumerate(rows):
            if self._admit(action) is REFUSED:
                given = shown(action.item() if isinstance(action, np.generic) else action)
                space = self.single_action_space
                raise InvalidAction(f"{self.name}: action {given} of row {row} is not in {space}")
        return rows

    @contextmanager
    def _moving(self) -> Generator[None]:
        """Context manager for code that steps rows: after an exception in it, the vector's next call must be a reset.

        The exception may leave some rows stepped and others not.
        """
        try:
            yield
        except BaseException as error:
            self._record.stop(error)
            raise

    @cached_property
    def _group_faults(self) -> GroupFaults:
        assert self.groups is not None
        return GroupFaults(self, self.groups)

    def _in_groups(self, results: Results) -> Results:
        """End or reset whole groups of which a row was lost; return the changed results of the step."""
        if self.groups is None:
            return results
        results = self._group_faults.stepped(results)
        self._record.end(results[2] | results[3])
        return results

    def state(self) -> Any:
        """Return each row's counters and fields, as :func:`envweave_gym.state_of` does."""
        return state_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_admit"}


class LocalVector(CheckedVector):
    """Base class of vectors with rows in this process; subclasses define how rows begin and act."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in the rows that ``options["reset_mask"]`` selects.

        ``options["rows"]`` is a list with further options for each row.
        """
        adapt_converters()
        call = self._read_reset(seed, options)
        rows = self._record.everyone if call.mask is None else call.mask
        outcome = self._begin(rows.nonzero()[0], call.seeds, call.options)
        self._record.reset(rows)
        return self._observed(), self._infos(rows, outcome, call.options)

    def step(self, actions: Any) -> Results:
        """Step every row; a row whose episode ended in the last step is reset instead, in next-step mode."""
        record, chosen = self._record, self._checked_actions(actions)
        rows, final = record.waiting.nonzero()[0], None
        rewards, terminated, truncated, outcome = self._act(chosen, rows)
        # In next-step mode these rows were over before the step, in same-step mode they are over now.
        resetting = record.end(terminated | truncated)
        if record.mode is AutoresetMode.SAME_STEP:
            rows = resetting.nonzero()[0]
            if rows.size:
                final = self._final(resetting, outcome)
        if rows.size:
            outcome = self._begin(rows, outcome=outcome)
        infos = self._infos(resetting, outcome)
        if final is not None:
            infos.update(final)
        results = self._observed(), rewards, terminated, truncated, infos
        return results if self.groups is None else self._in_groups(results)

    def resume(self, draws: NDArray[np.uint64], over: Bools, *, goes_on: bool) -> None:
        """Continue a vector whose server was lost, in a new one with the same rows.

        ``draws`` is the state of each row's seed generator, and ``over`` marks rows whose episode has ended. With
        ``goes_on``, later resets of a row that was seeded reach it without a seed, so that its random generator
        continues.
        """
        self._record.draws.states, self._record.over = draws, over

    # Methods of a subclass; ``outcome`` is its own record of a call, from which it builds the infos

    def _act(self, actions: Any, waiting: Rows) -> tuple[NDArray[np.float64], Bools, Bools, Any]:
        """Step the rows that are not in ``waiting``; return rewards, terminations, truncations and ``outcome``.

        ``outcome`` is the subclass's own record of the step, of any type, from which its :meth:`_infos` and
        :meth:`_final` build infos.
        """
        raise NotImplementedError

    def _begin(
        self, rows: Rows, given: list[int | None] | None = None, options: Options = None, outcome: Any = None
    ) -> Any:
        """Start episodes in ``rows`` with the seeds ``given``, or drawn ones; return ``outcome``, like :meth:`_act`.

        If this is part of a step, ``outcome`` is the result of :meth:`_act` for the other rows.
        """
        raise NotImplementedError

    def _observed(self) -> Any:
        """Return the observations of all rows, in new arrays."""
        raise NotImplementedError

    def _infos(self, begun: Bools, outcome: Any, options: Options = None) -> VectorInfos:
        """Return the infos of a call in which the rows ``begun`` (a mask) have started an episode.

        ``outcome`` is the result of :meth:`_act` or :meth:`_begin`.
        """
        raise NotImplementedError

    def _final(self, over: Bools, outcome: Any) -> dict[str, Any]:
        """Return ``final_obs`` and ``final_info`` of the rows ``over`` (a mask), which this step resets.

        ``outcome`` is the result of :meth:`_act`.
        """
        raise NotImplementedError
