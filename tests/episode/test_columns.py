"""The episodes of N rows in arrays: the autoreset modes, the order of calls, counters and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from envweave_gym.core.faults import Fault, FaultKind, ResetNeeded
from envweave_gym.core.seeding import draw_seed
from envweave_gym.episode.columns import RecordColumns

OVER = np.array([True, False, True])
NOBODY = [False, False, False]


def begun(mode: AutoresetMode, max_steps: int | None = None) -> RecordColumns:
    """Three rows whose episodes began with the seeds 5, 6 and 7."""
    record = RecordColumns(3, mode, max_steps)
    rows = np.arange(3)
    record.begin(rows, record.draws.next(rows, [5, 6, 7]))
    record.reset(record.everyone)
    return record


@pytest.mark.parametrize(
    ("mode", "resets_at_once", "waits"),
    [
        (AutoresetMode.NEXT_STEP, NOBODY, OVER.tolist()),
        (AutoresetMode.SAME_STEP, OVER.tolist(), NOBODY),
        (AutoresetMode.DISABLED, NOBODY, NOBODY),
    ],
)
def test_each_autoreset_mode_says_which_rows_a_step_resets(
    mode: AutoresetMode, resets_at_once: list[bool], waits: list[bool]
) -> None:
    record = begun(mode)
    assert record.end(OVER.copy()).tolist() == resets_at_once
    assert record.waiting.tolist() == waits
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(ResetNeeded, match=r"rows \[0, 2\] ended"):
            record.check_step("Env")
        record.check_step("Env", np.array([1]))
        record.reset(OVER)
    record.check_step("Env")
    assert record.end(np.zeros(3, np.bool_)).tolist() == waits


@pytest.mark.parametrize("mode", AutoresetMode)
def test_some_rows_may_step_without_the_others(mode: AutoresetMode) -> None:
    record, rows = begun(mode), np.array([2, 0])
    resetting = record.end(np.array([True, False]), rows)
    assert resetting.tolist() == [mode is AutoresetMode.SAME_STEP, False]
    assert record.over.tolist() == [False, False, mode is not AutoresetMode.SAME_STEP]
    assert not record.nobody.any()


def test_steps_are_refused_before_a_reset_and_after_a_call_that_was_stopped() -> None:
    record = RecordColumns(2, AutoresetMode.NEXT_STEP)
    with pytest.raises(ResetNeeded, match="before reset"):
        record.check_step("Env")
    record.reset(record.everyone)
    record.stop(KeyboardInterrupt())
    with pytest.raises(ResetNeeded, match="KeyboardInterrupt stopped"):
        record.check_step("Env")
    record.reset(record.everyone)
    record.check_step("Env")


def test_a_step_counts_events_and_blanks_the_rows_that_wait() -> None:
    record = begun(AutoresetMode.NEXT_STEP, max_steps=1)
    rewards, terminated = np.array([0.0, 2.0, 3.0]), np.array([False, True, True])
    truncated = record.act(rewards, terminated, np.array([2]))
    assert rewards.tolist() == [0.0, 2.0, 0.0]
    assert terminated.tolist() == [False, True, False]
    assert truncated.tolist() == [True, True, False]
    assert record.seq[:2].tolist() == [2, 3]  # act and end; act, reward and end
    assert record.turns[:2].tolist() == [1, 1]


def test_arrays_that_streams_hold_are_not_written_to() -> None:
    record = begun(AutoresetMode.NEXT_STEP)
    record.act(np.ones(3), np.zeros(3, np.bool_), np.empty(0, np.intp))
    held = record.seq, record.turns, record.seeds
    before = [array.tolist() for array in held]
    record.begin(np.array([0]), np.array([9], np.uint64), 4)
    record.act(np.ones(3), np.zeros(3, np.bool_), np.empty(0, np.intp))
    assert [array.tolist() for array in held] == before
    assert record.seeds.tolist() == [9, 6, 7]
    assert record.counters(0) == {"episode": 1, "step_count": 1}


@pytest.mark.parametrize("rows", [None, np.array([2, 0, 1])])
def test_rows_that_a_server_has_reset_have_drawn_their_next_seeds(rows: np.ndarray | None) -> None:
    record = begun(AutoresetMode.NEXT_STEP)
    reset = np.array([True, False, False])
    record.adopt_step(reset, np.array([0, 4, 5]), rows)
    row = 0 if rows is None else 2
    assert record.counters(row) == {"episode": 1, "step_count": 0}
    assert record.counters(1) == {"episode": 0, "step_count": 1}
    upcoming = record.draws.upcoming().tolist()
    assert upcoming == [draw_seed(5 + one, 2 if one == row else 1) for one in range(3)]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_the_info_of_a_lost_row_goes_on_from_its_counters(is_ignored: bool) -> None:
    record = begun(AutoresetMode.NEXT_STEP)
    record.adopt_step(np.zeros(3, np.bool_), np.array([3, 3, 3]))
    info = record.lost_step(1, Fault(FaultKind.LOST, "gone", True), 0, is_ignored=is_ignored)
    kinds = [event.kind for event in info["stream"].events]
    assert kinds == ["ignored" if is_ignored else "act", "fault", "episode_end"]
    assert (info["seq"], info["stream"].requests[0].turn) == (6, 2)
