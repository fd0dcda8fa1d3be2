"""A wrong call to a native vector environment is refused in one sentence and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from native_vectors import LINE, expect_equal, native

import envweave_gym as ew
from envweave_gym import InvalidAction, InvalidArgument, ResetNeeded


def names(error: type[Exception], said: str) -> Any:
    return pytest.raises(error, match=rf"^{LINE}: {said}")


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (np.zeros(4, np.int64), r"actions array\(\[0, 0, 0, 0\]\) are not in MultiDiscrete"),
        (np.zeros((5, 1), np.int64), "actions .* are not in"),
        (np.zeros(5), "actions .* are not in"),
        (np.zeros(5, bool), "actions .* are not in"),
        ([0, 1, 0, 1, 2], r"action 2 of row 4 is not in Discrete\(2\)"),
        ([0, -1, 0, 1, 2], r"action -1 of row 1 is not in Discrete\(2\)"),
        (np.array([0, 0, 0, 0, 2**64 - 1], np.uint64), "action 18446744073709551615 of row 4"),
        ([[0], [0, 1], 0, 0, 0], "actions .* are not in"),
        ([0, 0, 0, 0, 2**80], "actions .* are not in"),
        (0, "actions 0 are not in"),
        (None, "actions None are not in"),
        ({"a": 0}, "actions {'a': 0} are not in"),
        ("00000", "actions '00000' are not in"),
    ],
)
def test_wrong_actions_are_refused_and_change_nothing(actions: Any, said: str) -> None:
    env, twin = native(), native()
    env.reset(seed=0)
    twin.reset(seed=0)
    with names(InvalidAction, said):
        env.step(actions)
    expect_equal(env.step(np.zeros(5, np.int64)), twin.step(np.zeros(5, np.int64)))


@pytest.mark.parametrize("dtype", ["b", "B", "h", "i", "I", "q", "Q"])
def test_actions_of_every_integer_type_are_taken(dtype: str) -> None:
    env, twin = native(), native()
    env.reset(seed=0)
    twin.reset(seed=0)
    chosen = [0, 1, 1, 0, 1]
    expect_equal(env.step(np.array(chosen, dtype)), twin.step(chosen))


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        lambda chosen: [bool(one) for one in chosen],
        lambda chosen: np.array(chosen, object),
        lambda chosen: Tensor(chosen),
    ],
)
def test_every_vector_takes_a_batch_in_every_form(form: Callable[[list[int]], Any]) -> None:
    chosen = [0, 1, 1, 0, 1]
    for how in (None, "sync"):
        env, twin = (ew.make(LINE, num_envs=5, vectorization_mode=how) for _ in range(2))
        env.reset(seed=0)
        twin.reset(seed=0)
        expect_equal(env.step(form(chosen)), twin.step(np.array(chosen)))
        assert env.state() == twin.state() == ew.state_of(env)


class Tensor:
    """An array of another library."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.rows, dtype)


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (-1, r"reset\(seed=-1\) is not a seed"),
        (1.5, r"reset\(seed=1.5\)"),
        ("abcde", r"reset\(seed='abcde'\)"),
        (True, r"reset\(seed=True\)"),
        ([1, 2], "2 seeds were given; give one for each of 5 rows"),
        ([1, 2, 3, 4, -5], r"reset\(seed=-5\)"),
        ([1, 2, 3, 4, 5.0], r"reset\(seed=5.0\)"),
        (np.array([0.5] * 5), r"reset\(seed=0.5\)"),
        (2**64 - 4, r"reset\(seed=18446744073709551612\) has no 5 seeds"),
    ],
)
def test_wrong_seeds_are_refused_and_change_nothing(seed: Any, said: str) -> None:
    env, twin = native(), native()
    env.reset(seed=4)
    twin.reset(seed=4)
    with names(InvalidArgument, said):
        env.reset(seed=seed)
    expect_equal(env.step(np.zeros(5, np.int64)), twin.step(np.zeros(5, np.int64)))
    expect_equal(env.reset(), twin.reset())


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ([True] * 5, r"options\['reset_mask'\] is \[True.*; give a bool array of shape \(5,\)"),
        (np.ones(4, bool), r"options\['reset_mask'\] is .*; give a bool array of shape \(5,\)"),
        (np.ones(5), r"options\['reset_mask'\] is .*; give a bool array"),
        (np.zeros(5, bool), r"options\['reset_mask'\] names no row to reset; set one to True"),
    ],
)
def test_wrong_masks_are_refused(mask: Any, said: str) -> None:
    env = native()
    env.reset(seed=4)
    with names(InvalidArgument, said):
        env.reset(options={"reset_mask": mask})
    env.step(np.zeros(5, np.int64))


def test_calls_out_of_order_are_refused() -> None:
    env = native(mode=AutoresetMode.DISABLED)
    with names(ResetNeeded, r"step\(\) was called before reset\(\); call reset\(\) first"):
        env.step(np.zeros(5, np.int64))
    with names(InvalidArgument, r"options\['reset_mask'\] leaves out rows that never began"):
        env.reset(options={"reset_mask": np.arange(5) == 0})
    env.reset(seed=0)
    over = np.zeros(5, bool)
    while not over.any():
        _, _, terminated, truncated, _ = env.step(np.zeros(5, np.int64))
        over = terminated | truncated
    rows = over.nonzero()[0].tolist()
    with names(ResetNeeded, rf"step\(\) was called after the episodes of rows \[{rows[0]}.* ended"):
        env.step(np.zeros(5, np.int64))
    env.reset(options={"reset_mask": over})
    env.step(np.zeros(5, np.int64))
