"""A base for environments whose vector form is NumPy arrays rather than a list of environments.

A subclass says how rows begin, how all rows advance and what they observe; this class does the rest once:
seeds, the three autoreset modes, step limits, checks of actions, and infos whose streams are built only when
somebody looks at one. The rows behave as the single environments do under ``SyncVectorEnv``, seed for seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envweave_gym.core.actions import contains
from envweave_gym.core.arrays import adapt_converters
from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.seeding import SeedRows
from envweave_gym.episode.stream import Event, EventKind, Request, RequestKind, Stream, number
from envweave_gym.episode.vector_infos import StreamRows, VectorInfos
from envweave_gym.vector.calls import Bools, Options, as_batch, check_order, options_of, read_reset
from envweave_gym.vector.row_groups import Groups

Rows = NDArray[np.intp]
Opening = Callable[[int], Sequence[Event]]
"""Gives the events that the episode with this seed opens with."""


class NoNativeForm(InvalidArgument):
    """A native vector environment cannot do with these arguments; single environments in turn can.

    Its constructor raises this, and ``make`` gives those instead.
    """


_ONE = np.array(1)  # an array costs less beside an array than a Python int


def rows_apart(batch: NDArray[Any], rows: Bools) -> NDArray[np.object_]:
    """Some rows of a batch each by itself, in an array that has ``None`` for the others."""
    array = np.full(len(rows), None, dtype=object)
    for row in rows.nonzero()[0].tolist():
        array[row] = batch[row]
    return array


class NativeVectorEnv(VectorEnv[Any, Any, Any]):
    """``num_envs`` environments with a ``Discrete`` action space as rows of arrays.

    Subclasses call ``super().__init__`` and define :meth:`begin`, :meth:`advance`, :meth:`observe` and, where
    a reset has something to tell, :meth:`opening`.
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
        self._max_steps = np.array(np.iinfo(np.int64).max if max_steps is None else max_steps)
        self._draws = SeedRows(num_envs)
        self._seeds = np.zeros(num_envs, np.uint64)
        self._episodes = np.full(num_envs, -1)
        # Arrays that streams hold are replaced, never written to, once a call has returned.
        self._steps = np.zeros(num_envs, np.int64)
        self._seq = np.zeros(num_envs, np.int64)
        self._over: Bools = np.zeros(num_envs, np.bool_)
        self._started = False
        self._everyone: Bools = np.ones(num_envs, np.bool_)
        self._everyone.flags.writeable = False
        self._nobody: Bools = ~self._everyone

    # What a subclass says

    def begin(self, rows: Rows, seeds: NDArray[np.uint64], options: dict[str, Any]) -> None:
        """Start a new episode in ``rows`` with these seeds.

        ``options`` are what ``reset`` was given beside the mask, for the same treatment that the single
        environment gives them: used, ignored, or refused with ``InvalidArgument`` before anything has
        changed. Where a row resets itself they are empty.
        """
        raise NotImplementedError

    def advance(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.float64], Bools]:
        """Act in all rows at once; fresh arrays of rewards and terminations.

        ``actions`` count from 0 and are only to be read. Rows that are about to be reset take part; what
        comes of them is thrown away.
        """
        raise NotImplementedError

    def observe(self) -> NDArray[Any]:
        """The observations of all rows, in a fresh array."""
        raise NotImplementedError

    def opening(self, seed: int) -> tuple[Event, ...]:
        """The events an episode with this seed opens with: ``opening_events`` of them, whatever the seed.

        A function of the seed alone. In this process it is called when somebody looks at the stream, which
        may be when the episode is long over; a server calls it at once and sends the events with its reply.
        """
        return ()

    groups: Groups | None = None
    """The groups of rows that play the same episodes, if ``make`` was asked for any."""

    opening_events = 0
    """How many events :meth:`opening` tells."""

    apart: Callable[[NDArray[Any], Bools], Any] = staticmethod(rows_apart)
    """What makes the last observations of rows out of those of all; a server sends them together."""

    def row_state(self, row: int) -> dict[str, Any]:
        """What the single environment shows of itself in ``episode_state``, as JSON."""
        return {}

    def resume(self, draws: NDArray[np.uint64], over: Bools) -> None:
        """Go on drawing seeds, and waiting for resets of rows, as another vector would that was lost."""
        self._draws._states, self._over = draws, over

    # What users call

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes in all rows, or in those of ``options["reset_mask"]``.

        ``options["rows"]`` is a list of what each row is given beside the other options.
        """
        adapt_converters()
        call = read_reset(
            self._name,
            self.num_envs,
            seed,
            options,
            self.metadata,
            begun=self._started,
            groups=self.groups,
        )
        mask = self._everyone if call.mask is None else call.mask
        self._steps, self._seq = self._steps.copy(), self._seq.copy()
        self._begin(mask.nonzero()[0], call.seeds, call.options)
        self._over = self._over & ~mask
        self._started = True
        told = NativeStreams(self._opening, mask, self._seeds, options=jsonable(call.options))
        streams = StreamRows(told, mask)
        infos = VectorInfos(stream=streams, _stream=mask.copy(), seq=self._seq * mask, _seq=mask.copy())
        return self.observe(), infos

    def step(self, actions: Any) -> tuple[Any, NDArray[np.float64], Bools, Bools, dict[str, Any]]:
        """Act in every row."""
        resetting = self._over
        rows = self._rows_to_reset()
        chosen = checked_choices(self._name, actions, self.num_envs, self._choices, self.action_space)
        rewards, terminated = self.advance(chosen)
        self._steps = self._steps + _ONE
        truncated = self._steps >= self._max_steps
        if rows.size:
            rewards[rows], terminated[rows], truncated[rows] = 0.0, False, False
        self._over = over = terminated | truncated
        self._seq = self._seq + _ONE
        self._seq += over.view(np.int8) + (rewards != 0.0)
        if rows.size:
            self._begin(rows)
        ends = (rewards.copy(), terminated.copy(), truncated.copy())
        steps = Steps(chosen, int(self._choices.start), *ends, self._seq, self._steps)
        streams = StreamRows(NativeStreams(self._opening, resetting, self._seeds, steps), resetting)
        everyone = self._everyone
        infos = VectorInfos(stream=streams, _stream=everyone, seq=self._seq.copy(), _seq=everyone)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and over.any():
            self._reset_in_same_step(infos, steps)
        return self.observe(), rewards, terminated, truncated, infos

    def state(self) -> tuple[dict[str, Any], ...]:
        """What ``state()`` of each single environment would give."""
        pairs = enumerate(zip(self._episodes.tolist(), self._steps.tolist(), strict=True))
        return tuple(
            {"episode": episode, "step_count": steps, **self.row_state(row)}
            for row, (episode, steps) in pairs
        )

    stream_state = state

    # Inside

    def _rows_to_reset(self) -> Rows:
        """The rows whose step is a reset; in the other modes a row that is over must not be stepped."""
        rows = self._over.nonzero()[0]
        if not self._started or (rows.size and self.autoreset_mode is not AutoresetMode.NEXT_STEP):
            check_order(self._name, self._started, rows)
        return rows

    def _reset_in_same_step(self, infos: dict[str, Any], steps: Steps) -> None:
        """Reset the rows that just ended, with their last observations and streams kept as final."""
        over, last = self._over, self.observe()
        final_obs = self.apart(last, over)
        final_seq = self._seq * over
        self._steps, self._seq, self._over = self._steps.copy(), self._seq.copy(), self._nobody
        self._begin(over.nonzero()[0])
        infos["stream"] = StreamRows(NativeStreams(self._opening, over, self._seeds, steps), over)
        infos["seq"] = self._seq.copy()
        infos["final_obs"], infos["_final_obs"] = final_obs, over.copy()
        ended = NativeStreams(None, self._nobody, self._seeds, steps, rows=over)
        final = StreamRows(ended, self._nobody)
        infos["final_info"] = VectorInfos(stream=final, _stream=over.copy(), seq=final_seq, _seq=over.copy())
        infos["_final_info"] = over.copy()

    def _begin(self, rows: Rows, given: list[int | None] | None = None, options: Options = None) -> None:
        """Start episodes in ``rows``, with the seeds given or drawn."""
        seeds = self._draws.next(rows, given)
        if isinstance(options, list):
            self._begin_apart(rows, seeds, options)
        else:
            self.begin(rows, seeds, options or {})
        self._seeds = self._seeds.copy()
        self._seeds[rows] = seeds
        self._steps[rows] = 0
        self._episodes[rows] += 1
        self._seq[rows] = self.opening_events

    def _begin_apart(self, rows: Rows, seeds: NDArray[np.uint64], options: list[dict[str, Any]]) -> None:
        """Start episodes with options of their own: those together that have the same."""
        left = np.ones(len(rows), np.bool_)
        while left.any():
            theirs = options[rows[left.argmax()]]
            alike = left & [options[row] == theirs for row in rows.tolist()]
            try:
                self.begin(rows[alike], seeds[alike], theirs)
            except BaseException:
                self._started &= bool(left.all())  # otherwise some rows have begun and others have not
                raise
            left &= ~alike

    @property
    def _opening(self) -> Opening | None:
        """:meth:`opening`, where it tells any events."""
        return self.opening if self.opening_events else None

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__


def checked_choices(
    name: str, actions: Any, num_envs: int, space: Discrete, all_actions: Space[Any]
) -> NDArray[np.int64]:
    """The actions of all rows counted from 0, in an array of their own; a wrong one is refused."""
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
    if offset.view(np.uint64).max() >= space.n:  # below 0 is far above any n
        row = int((offset.view(np.uint64) >= np.uint64(space.n)).nonzero()[0][0])
        raise InvalidAction(f"{name}: action {given[row]} of row {row} is not in {space}")
    return offset


def _as_array(actions: Any) -> NDArray[Any]:
    """The rows in an array, as what they are where NumPy would make something else of them."""
    batch = as_batch(actions)
    if isinstance(batch, np.ndarray):
        return batch
    try:
        given = np.asarray(batch)
        return given if given.dtype.kind != "b" else np.asarray(batch, object)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, or on a GPU
        return np.empty(0)


class Steps:
    """What the arrays of a native vector held at a step."""

    def __init__(
        self,
        actions: NDArray[Any],
        start: int,
        rewards: NDArray[np.float64],
        terminated: Bools,
        truncated: Bools,
        seq: NDArray[np.int64],
        turns: NDArray[np.int64],
    ) -> None:
        """``actions`` count from 0, where ``start`` is added to tell of them."""
        self.actions, self.start = actions, start
        self.rewards, self.terminated, self.truncated = rewards, terminated, truncated
        self.seq, self.turns = seq, turns

    def stream(self, row: int) -> Stream:
        """The stream of a row that acted."""
        seq, turn = int(self.seq[row]), int(self.turns[row])
        ends = {"terminated": bool(self.terminated[row]), "truncated": bool(self.truncated[row])}
        over, reward = any(ends.values()), float(self.rewards[row])
        first = seq - over - (reward != 0)
        action = int(self.actions[row]) + self.start
        events = (Event(first, EventKind.ACT, AGENT, None, {"action": action}),)
        if reward:
            events += (Event(first + 1, EventKind.REWARD, AGENT, None, {"reward": jsonable(reward)}),)
        if over:
            end = Event(seq, EventKind.EPISODE_END, None, None, ends)
            return Stream((Request(seq, RequestKind.RESET, None, turn),), (*events, end))
        return Stream((Request(seq, RequestKind.ACT, AGENT, turn),), events)


class NativeStreams:
    """The streams of a reset or a step, built row by row on demand from what the arrays held then."""

    def __init__(
        self,
        opening: Opening | None,
        reset: Bools,
        seeds: NDArray[np.uint64],
        steps: Steps | None = None,
        *,
        options: Options = None,
        rows: Bools | None = None,
    ) -> None:
        """The rows of ``reset`` were reset with their ``seeds``, the others acted in ``steps``.

        ``opening`` is ``None`` where episodes open with no events of their own. ``rows`` are those that have
        a stream at all, where not all have.
        """
        self.opening, self.reset, self.seeds = opening, reset, seeds
        self.steps, self.options, self.rows = steps, options or {}, rows

    def __call__(self, row: int) -> Stream | None:
        """The stream of a row."""
        if self.rows is not None and not self.rows[row]:
            return None
        if self.reset[row]:
            return self._opened(int(self.seeds[row]), options_of(self.options, row))
        return None if self.steps is None else self.steps.stream(row)

    def _opened(self, seed: int, options: dict[str, Any] | None) -> Stream:
        start: dict[str, Any] = {"seed": seed, "options": options} if options else {"seed": seed}
        told = () if self.opening is None else number(self.opening(seed), 1)
        events = (Event(0, EventKind.EPISODE_START, None, None, start), *told)
        return Stream((Request(len(events) - 1, RequestKind.ACT, AGENT, 0),), events)
