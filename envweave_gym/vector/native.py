"""Base class of native vectors: environments whose rows are NumPy arrays rather than environment objects.

A subclass defines how rows begin, advance and observe. This class does the rest: seeds, the three autoreset
modes, step limits, checks of actions, and infos whose streams (events and requests) are built on access. Rows
behave as the single environments do under ``SyncVectorEnv``, seed for seed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envweave_gym.core.actions import contains
from envweave_gym.core.call_results import no_finite_reward
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.episode.columns import (
    Bools,
    ColumnStreams,
    Opening,
    Options,
    RecordColumns,
    Rows,
    StepColumns,
)
from envweave_gym.episode.stream import Event
from envweave_gym.episode.vector_infos import StreamRows, VectorInfos
from envweave_gym.vector.base import LocalVector
from envweave_gym.vector.reset_arguments import as_batch


class NoNativeForm(InvalidArgument):
    """Error if the native vector does not support the arguments; ``make`` then steps single environments instead."""


def rows_apart(batch: NDArray[Any], rows: Bools) -> NDArray[np.object_]:
    """Split a batch into an object array of rows; rows that are not in the mask ``rows`` are ``None``."""
    array = np.full(len(rows), None, dtype=object)
    for row in rows.nonzero()[0].tolist():
        array[row] = batch[row]
    return array


class NativeVectorEnv(LocalVector):
    """Base class of ``num_envs`` environments with ``Discrete`` actions whose rows are NumPy arrays.

    Subclasses call ``super().__init__`` and define :meth:`begin`, :meth:`advance`, :meth:`observe` and, if
    episodes open with events, :meth:`opening`.
    """

    def __init__(
        self,
        single_observation_space: Space[Any],
        single_action_space: Discrete,
        *,
        num_envs: int,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_steps: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = single_observation_space
        self.single_action_space = self._choices = single_action_space
        self.observation_space = batch_space(single_observation_space, num_envs)
        self.action_space = batch_space(single_action_space, num_envs)
        self.render_mode = None
        self._record = RecordColumns(num_envs, self.autoreset_mode, max_steps)

    # Methods of a subclass

    def begin(self, rows: Rows, seeds: NDArray[np.uint64], options: dict[str, Any]) -> None:
        """Start a new episode in ``rows`` with these seeds.

        ``options`` are the options of ``reset`` without the mask. Treat them as the single environment does:
        use, ignore, or refuse them with ``InvalidArgument`` before anything has changed. They are empty when a
        row resets itself.
        """
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float64], Bools]:
        """Step all rows; return rewards and terminations in new arrays.

        ``actions`` count from 0 and are read-only. Rows that are about to be reset are stepped too, and their
        results are dropped.
        """
        raise NotImplementedError

    def observe(self) -> NDArray[Any]:
        """Return the observations of all rows in a new array."""
        raise NotImplementedError

    def opening(self, seed: int) -> tuple[Event, ...]:
        """Return the :attr:`opening_events` events that begin the episode with this seed.

        The events must depend on the seed alone. In this process the method is called when ``info["stream"]`` is
        read, which may be after the episode. A server calls it at once and sends the events with its reply.
        """
        return ()

    opening_events = 0
    """Number of events that :meth:`opening` returns, for any seed."""

    apart: Callable[[NDArray[Any], Bools], Any] = staticmethod(rows_apart)
    """Function that splits the last observations by row; a server replaces it, to send one array instead."""

    def row_state(self, row: int) -> dict[str, Any]:
        """Return the ``episode_state`` that the single environment would have, as JSON."""
        return {}

    def state(self) -> tuple[dict[str, Any], ...]:
        """Return each row's state, as ``state()`` of the single environment would."""
        counters = map(self._record.counters, range(self.num_envs))
        return tuple({**known, **self.row_state(row)} for row, known in enumerate(counters))

    stream_state = state

    # The parts of a step

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Name of this vector in error messages: its ID, or else its class."""
        return self.spec.id if self.spec is not None else type(self).__name__

    def _checked_actions(self, actions: Any) -> NDArray[np.int64]:
        name = self.name
        self._record.check_step(name)
        return checked_choices(name, actions, self.num_envs, self._choices, self.action_space)

    def _act(
        self, actions: NDArray[np.int64], waiting: Rows
    ) -> tuple[NDArray[np.float64], Bools, Bools, StepColumns]:
        record = self._record
        rewards, terminated = self.advance(actions)
        truncated = record.act(rewards, terminated, waiting)
        # A third of the cost of np.isfinite(rewards).all(); unlike dot(), vdot() does not warn of an overflow.
        if not isfinite(np.vdot(rewards, rewards)):
            self._refuse_infinite(rewards)
        # The caller may write to what a step returns; streams are built later, from these copies.
        copies = rewards.copy(), terminated.copy(), truncated.copy()
        step = StepColumns(actions, int(self._choices.start), *copies, record.seq, record.turns)
        return rewards, terminated, truncated, step

    def _refuse_infinite(self, rewards: NDArray[np.float64]) -> None:
        """Raise ``ValueError`` if a reward is NaN or infinite; after that, the next call must be a reset."""
        rows = (~np.isfinite(rewards)).nonzero()[0]
        if rows.size:  # else finite rewards were too large for their product
            error = no_finite_reward(self.name, rewards[rows[0]].item(), f"row {rows[0]}")
            self._record.stop(error)
            raise error

    def _begin(
        self, rows: Rows, given: list[int | None] | None = None, options: Options = None, outcome: Any = None
    ) -> Any:
        seeds = self._record.draws.next(rows, given)
        if isinstance(options, list):
            self._begin_apart(rows, seeds, options)
        else:
            self.begin(rows, seeds, options or {})
        self._record.begin(rows, seeds, self.opening_events)
        return outcome

    def _begin_apart(self, rows: Rows, seeds: NDArray[np.uint64], options: list[dict[str, Any]]) -> None:
        """Start episodes of rows with different options; rows with equal options share one call of :meth:`begin`."""
        left = np.ones(len(rows), np.bool_)
        while left.any():
            theirs = options[rows[left.argmax()]]
            alike = left & [options[row] == theirs for row in rows.tolist()]
            try:
                self.begin(rows[alike], seeds[alike], theirs)
            except BaseException as error:
                if not left.all():
                    self._record.stop(error)
                raise
            left &= ~alike

    def _observed(self) -> Any:
        return self.observe()

    def _infos(self, begun: Bools, outcome: StepColumns | None, options: Options = None) -> VectorInfos:
        record = self._record
        if outcome is None:
            opened = ColumnStreams(self._opening, begun, record.seeds, options=jsonable(options))
            return _infos(opened, begun, begun, record.seq * begun)
        streams = StreamRows(ColumnStreams(self._opening, begun, record.seeds, outcome), begun)
        known = record.everyone
        return VectorInfos(stream=streams, _stream=known, seq=record.seq.copy(), _seq=known)

    def _final(self, over: Bools, outcome: StepColumns) -> dict[str, Any]:
        record = self._record
        ended = ColumnStreams(None, record.nobody, record.seeds, outcome, rows=over)
        return {
            "final_obs": self.apart(self.observe(), over),
            "_final_obs": over.copy(),
            "final_info": _infos(ended, record.nobody, over, record.seq * over),
            "_final_info": over.copy(),
        }

    @property
    def _opening(self) -> Opening | None:
        """The method :meth:`opening`, or ``None`` if episodes open without events."""
        return self.opening if self.opening_events else None


def _infos(streams: ColumnStreams, begun: Bools, known: Bools, seq: NDArray[np.int64]) -> VectorInfos:
    """Return the infos of the rows ``known`` (a mask); ``streams`` builds theirs on access; rows ``begun`` are new."""
    rows = StreamRows(streams, begun)
    return VectorInfos(stream=rows, _stream=known.copy(), seq=seq, _seq=known.copy())


def checked_choices(
    name: str, actions: Any, num_envs: int, space: Discrete, all_actions: Space[Any]
) -> NDArray[np.int64]:
    """Check discrete actions, and return them counted from 0, in a new array.

    ``space`` is the space of one action, ``all_actions`` that of all, for error messages.
    """
    given = actions if isinstance(actions, np.ndarray) else _as_array(actions)
    if (
        given.dtype.kind == "O"
        and given.shape == (num_envs,)
        and all(contains(space, one) for one in given.tolist())
    ):
        given = given.astype(np.int64)
    if given.shape != (num_envs,) or given.dtype.kind not in "iu":
        raise InvalidAction(f"{name}: actions {shown(actions)} are not in {all_actions}")
    offset = given.astype(np.int64)
    if space.start:
        offset -= space.start
    if offset.view(np.uint64).max() >= space.n:  # as unsigned, a negative number is far above any n
        row = int((offset.view(np.uint64) >= np.uint64(space.n)).nonzero()[0][0])
        raise InvalidAction(f"{name}: action {given[row]} of row {row} is not in {space}")
    return offset


def _as_array(actions: Any) -> NDArray[Any]:
    """Convert actions to an array; bools stay objects, so that the check refuses them."""
    batch = as_batch(actions)
    if isinstance(batch, np.ndarray):
        return batch
    try:
        given = np.asarray(batch)
        return given if given.dtype.kind != "b" else np.asarray(batch, object)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, or on a GPU
        return np.empty(0)
