"""The episodes of N rows in arrays: counters, ends, seeds, autoreset and streams (events, requests) built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envweave_gym.core.faults import Fault, ResetNeeded, shown
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.protocols import AGENT
from envweave_gym.core.seeding import GOLDEN, SeedRows
from envweave_gym.episode.record import EpisodeRecord
from envweave_gym.episode.stream import Event, EventKind, Request, RequestKind, Stream, number

Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]
"""Indices of rows."""
Options = dict[str, Any] | list[dict[str, Any]] | None
"""The options of a reset: one dict for all rows, or a list with a dict for each row."""
Opening = Callable[[int], Sequence[Event]]
"""Function from the seed of an episode to the events that the episode opens with."""

_ONE = np.array(1)  # an array costs less beside an array than a Python int
_NO_LIMIT = np.iinfo(np.int64).max


def options_of(options: Options, row: int) -> dict[str, Any] | None:
    """Return the options of one row, from options for all rows or a list with one dict for each."""
    return options[row] if isinstance(options, list) else options


class RecordColumns:
    """The state of the episodes of N rows in arrays, and the rules of Gymnasium's three autoreset modes.

    Streams are built later from the arrays ``seq``, ``turns`` and ``seeds``, so these are replaced, never written to.
    """

    def __init__(self, rows: int, mode: AutoresetMode, max_steps: int | None = None) -> None:
        self.mode = mode
        self.draws = SeedRows(rows)
        self.seeds = np.zeros(rows, np.uint64)
        """The seed of each row's episode."""
        self.episodes = np.full(rows, -1)
        self.seq, self.turns = np.zeros((2, rows), np.int64)
        """The number of each row's last event, and the count of its steps in this episode."""
        self.over: Bools = np.zeros(rows, np.bool_)
        """The mask of rows whose episode has ended and which were not reset since then."""
        self.has_begun = False
        """Whether there was a reset, so that every row has an episode or has had one."""
        self.cut_short = ""
        """The type name of the exception that interrupted the last call, after which only a reset is allowed.

        ``""`` if it was not interrupted.
        """
        # Masks of all rows and of none.
        self.everyone: Bools = np.ones(rows, np.bool_)
        self.everyone.flags.writeable = False
        self.nobody: Bools = np.zeros(rows, np.bool_)
        self._max_steps = np.array(_NO_LIMIT if max_steps is None else max_steps)

    # Order of calls and autoreset

    def check_step(self, name: str, rows: Rows | None = None) -> None:
        """Raise ``ResetNeeded`` before the first reset, after an interrupted call, or if an episode is over.

        ``rows`` are the indices of the rows that act; ``None`` means all. In next-step mode the step itself resets
        rows whose episode is over.
        """
        if self.cut_short:
            raise ResetNeeded(f"{name}: {self.cut_short} stopped the last call halfway; call reset()")
        if not self.has_begun:
            raise ResetNeeded(f"{name}: step() was called before reset(); call reset() first")
        if self.mode is AutoresetMode.NEXT_STEP or not self.over.any():
            return
        over = self.over.nonzero()[0] if rows is None else rows[self.over[rows]]
        if over.size:
            raise ResetNeeded(
                f"{name}: step() was called after the episodes of rows {shown(over.tolist())} ended; "
                "call reset(options={'reset_mask': …}) for them"
            )

    @property
    def waiting(self) -> Bools:
        """The mask of rows that the next step resets (next-step mode), so that their actions are ignored."""
        return self.over if self.mode is AutoresetMode.NEXT_STEP else self.nobody

    def end(self, over: Bools, rows: Rows | None = None) -> Bools:
        """Record the mask of ``rows`` (``None``: all) that are over after a step; return the mask of rows to reset.

        Next-step mode resets the rows that were over before the step, same-step mode those that are over now.
        """
        resetting = self.over if rows is None else self.over[rows]
        if self.mode is AutoresetMode.SAME_STEP:
            over, resetting = self.nobody[: len(over)], over
        elif self.mode is AutoresetMode.DISABLED:
            resetting = self.nobody[: len(over)]
        if rows is not None:
            some, over = over, self.over.copy()
            over[rows] = some
        self.over = over
        return resetting

    def reset(self, rows: Bools) -> None:
        """Record a reset of the rows in the mask ``rows``."""
        self.over = self.over & ~rows
        self.has_begun, self.cut_short = True, ""

    def stop(self, error: BaseException) -> None:
        """Record that an exception interrupted a call: it is unknown which rows have moved."""
        self.has_begun, self.cut_short = False, type(error).__name__

    # Counters

    def begin(self, rows: Rows, seeds: NDArray[np.uint64], seq: int = 0) -> None:
        """Record the start of episodes in ``rows``, whose first events have the numbers 0 to ``seq``."""
        self.seeds, self.seq, self.turns = self.seeds.copy(), self.seq.copy(), self.turns.copy()
        self.seeds[rows], self.seq[rows], self.turns[rows] = seeds, seq, 0
        self.episodes[rows] += 1

    def act(self, rewards: NDArray[np.float64], terminated: Bools, waiting: Rows) -> Bools:
        """Count a step, and return the mask of rows that are truncated by the step limit.

        Rewards and flags of the rows ``waiting``, which the step resets, are set to zero in place.
        """
        # New arrays: streams of earlier steps refer to the old ones.
        self.turns = self.turns + _ONE
        truncated = self.turns >= self._max_steps
        if waiting.size:
            rewards[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False
        self.seq = self.seq + _ONE
        # One event for the action; one more at the end of an episode, and one for a reward other than 0.
        self.seq += (terminated | truncated).view(np.int8) + (rewards != 0.0)
        return truncated

    def counters(self, row: int) -> dict[str, int]:
        """Return the number of a row's episode, and the count of its steps."""
        return {"episode": int(self.episodes[row]), "step_count": int(self.turns[row])}

    # Rows on servers, which number the events themselves

    def adopt_reset(self, rows: Bools, seq: NDArray[np.int64]) -> None:
        """Record that servers have reset the rows in the mask ``rows``; ``seq`` numbers the last event of each row."""
        self.reset(rows)
        self.episodes[rows] += 1
        self.seq[rows], self.turns[rows] = seq[rows], 0

    def adopt_step(self, begun: Bools, seq: NDArray[np.int64], rows: Rows | None = None) -> None:
        """Record a step of ``rows`` (``None``: all) on their servers; it has reset the rows in the mask ``begun``.

        ``seq`` has the number of each row's last event.
        """
        every = slice(None) if rows is None else rows
        self.turns[every] += 1
        self.seq[every] = seq
        if np.count_nonzero(begun):
            begun_rows = begun.nonzero()[0] if rows is None else rows[begun]
            self.episodes[begun_rows] += 1
            self.turns[begun_rows] = 0
            self.draws.states[begun_rows] += GOLDEN  # the server has drawn the seed that would be drawn here

    def lost_step(self, row: int, fault: Fault, action: Any, *, is_ignored: bool) -> dict[str, Any]:
        """Record the step in which the episode of one row was lost, and return the row's info.

        ``action`` is JSON. ``is_ignored`` says that the loss was found before the step, so that the action had no
        effect.
        """
        record = EpisodeRecord(seq=int(self.seq[row]), turn=int(self.turns[row]))
        if not is_ignored:
            return record.lost(fault, action)
        record.lost_between_steps(fault)
        return record.report_loss(action)


class StepColumns:
    """The results of a vector's step in arrays, from which the stream of any row can be built later."""

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
        """Store the arrays; ``actions`` count from 0, and events show them with ``start`` added."""
        self.actions, self.start = actions, start
        self.rewards, self.terminated, self.truncated = rewards, terminated, truncated
        self.seq, self.turns = seq, turns

    def stream(self, row: int) -> Stream:
        """Return the stream of a row that acted."""
        seq, turn = int(self.seq[row]), int(self.turns[row])
        ends = {"terminated": bool(self.terminated[row]), "truncated": bool(self.truncated[row])}
        over, reward = any(ends.values()), float(self.rewards[row])
        first = seq - over - (reward != 0)  # the events of a step end with number seq
        action = int(self.actions[row]) + self.start
        events = (Event(first, EventKind.ACT, AGENT, None, {"action": action}),)
        if reward:
            events += (Event(first + 1, EventKind.REWARD, AGENT, None, {"reward": jsonable(reward)}),)
        if over:
            end = Event(seq, EventKind.EPISODE_END, None, None, ends)
            return Stream((Request(seq, RequestKind.RESET, None, turn),), (*events, end))
        return Stream((Request(seq, RequestKind.ACT, AGENT, turn),), events)


class ColumnStreams:
    """Callable that builds a row's ``Stream`` (its events and open requests) from the arrays of a reset or step.

    Vectors that keep their rows in arrays use it. A stream is built only when it is read, because building the
    streams of all rows would take far longer than the step.
    """

    def __init__(
        self,
        opening: Opening | None,
        reset: Bools,
        seeds: NDArray[np.uint64],
        step: StepColumns | None = None,
        *,
        options: Options = None,
        rows: Bools | None = None,
    ) -> None:
        """Store the arrays: the rows in the mask ``reset`` were reset with ``seeds``; the others acted in ``step``.

        ``opening`` is ``None`` if episodes open without events of their own. ``rows`` marks the rows that
        have a stream; ``None`` stands for all.
        """
        self.opening, self.reset, self.seeds = opening, reset, seeds
        self.step, self.options, self.rows = step, options or {}, rows

    def __call__(self, row: int) -> Stream | None:
        """Return the stream of a row, or ``None`` if it has none."""
        if self.rows is not None and not self.rows[row]:
            return None
        if self.reset[row]:
            return self._opened(int(self.seeds[row]), options_of(self.options, row))
        return None if self.step is None else self.step.stream(row)

    def _opened(self, seed: int, options: dict[str, Any] | None) -> Stream:
        start: dict[str, Any] = {"seed": seed, "options": options} if options else {"seed": seed}
        own = () if self.opening is None else number(self.opening(seed), 1)
        events = (Event(0, EventKind.EPISODE_START, None, None, start), *own)
        return Stream((Request(len(events) - 1, RequestKind.ACT, AGENT, 0),), events)
