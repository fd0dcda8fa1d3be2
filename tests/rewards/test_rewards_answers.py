"""Answers: when a result is what was expected, and when a task is completed."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.core.program_result import Result
from envweave_gym.rewards.transforms import MathAnswer, TaskCompletion, math_transform, result_of


def right(expected: Any, value: Any, **fields: Any) -> bool:
    reward = MathAnswer(expected)("", "", {"result": {"success": True, "value": value, **fields}})
    assert reward in (0.0, 1.0)
    return reward == 1.0


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (42, 42),
        (42, 42.0),
        (42, 42 + 5e-7),
        (42, "42"),
        (42, " 42.0\n"),
        (42, "84/2"),
        (42, np.int64(42)),
        (42, np.float32(42)),
        (42, np.array(42)),
        (42, "np.float64(42.0)"),
        (42, "Decimal('42')"),
        (42, Decimal(42)),
        (42, 42 + 0j),
        ("42", 42),
        (np.float64(0.5), "1/2"),
        (Fraction(1, 3), "Fraction(1, 3)"),
        (Fraction(1, 3), 1 / 3),
        ("1/3", 0.3333333),
        (1 + 2j, "(1+2j)"),
        (1 + 2j, 1 + 2j),
        (float("inf"), "inf"),
        (10**30 + 1, str(10**30 + 1)),
        (True, True),
        (True, "True"),
        (True, np.True_),
        ("abc", "abc"),
        ("abc", "'abc'"),
        ("it's", repr("it's")),
        ([1, 2], "[1,2]"),
        ([1, 2], (1, 2)),
        ((1, 2), [1, 2]),
        ([0.3, [1]], [0.1 + 0.2, [1.0]]),
        ([1, 2], np.array([1, 2])),
        ({1, 2}, "{2, 1}"),
        ({"a": 1}, "{'a': 1}"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, None),
        (None, "None"),
    ],
)
def test_right_answers(expected: Any, value: Any) -> None:
    assert right(expected, value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (42, 42.00001),
        (42, None),
        (42, ""),
        (42, "forty-two"),
        (42, [42]),
        (42, "[42]"),
        (42, 42 + 1j),
        (1, True),
        (True, 1),
        (0, False),
        (1, "True"),
        (1.5, float("nan")),
        (1.5, "nan"),
        ([1.5], [float("nan")]),
        (float("inf"), "nan"),
        (float("inf"), "-inf"),
        (10**30 + 1, str(10**30)),
        (1.5, "1/0"),
        ("1e400", "1e999"),
        (1.5, "1e999999999"),
        (1.5, "1e999999999/1"),
        ("abc", "abcd"),
        ([1, 2], [1, 2, 3]),
        ([1, 2], "[2, 1]"),
        ([1], "[1] * 10**9"),
        ({"a": 1}, "{'a': 2}"),
    ],
)
def test_wrong_answers(expected: Any, value: Any) -> None:
    assert not right(expected, value)


def test_monstrous_values_are_just_wrong() -> None:
    for value in (
        10**400,
        10**5_000,
        "9" * 10_000,
        "[" * 300,
        "[" * 100_000,
        "(1, " * 150,
        "1/" + "9" * 10_000,
    ):
        for expected in (1.5, 1, "abc", [1]):
            assert not right(expected, value)
    assert not right(10**400, 1.5)


def test_tolerance_is_the_authors() -> None:
    assert MathAnswer(3.14159, tolerance=0.01)("", "", {"result": {"value": 3.14}}) == 1.0
    assert MathAnswer(3.14159, tolerance=0.0)("", "", {"result": {"value": 3.14}}) == 0.0
    assert MathAnswer(1, tolerance=Fraction(1, 2))("", "", {"result": {"value": 1.5}}) == 1.0


@pytest.mark.parametrize(
    "tolerance", [-1, -1e-9, float("nan"), float("inf"), None, "0.1", True, 1j, [0.1], np.array([0.1, 0.2])]
)
def test_a_tolerance_is_a_finite_number_of_at_least_zero(tolerance: Any) -> None:
    for make in (MathAnswer, math_transform):
        with pytest.raises(InvalidArgument, match=r"^MathAnswer: tolerance is a finite number of at least z"):
            make(1, tolerance=tolerance)


@pytest.mark.parametrize(
    "expected",
    [
        float("nan"),
        np.float32("nan"),
        "nan",
        "NaN",
        Decimal("nan"),
        complex("nan"),
        [1, float("nan")],
        np.array([1.0, np.nan]),
    ],
    ids=repr,
)
def test_an_answer_that_can_never_be_right_is_refused(expected: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^MathAnswer: expected=.* equals nothing, not even itself"):
        MathAnswer(expected)


def test_the_last_line_printed_answers_where_there_is_no_value() -> None:
    assert right(42, None, stdout="thinking…\n42\n")
    assert right(42, "None", stdout="42")
    assert not right(42, None, stdout="42\nno, 43\n")
    assert not right(42, 43, stdout="42")


def test_the_result_is_looked_for_in_info_then_in_the_observation() -> None:
    answer = MathAnswer(42)
    seen = {"value": "42", "success": True, "stdout": ""}
    assert answer("", seen, {}) == 1.0
    assert answer("", seen, {"result": {"value": 43, "success": True}}) == 0.0
    assert answer("", seen, {"result": "not a mapping"}) == 1.0
    assert answer("", seen, {"result": {}}) == 1.0
    assert answer("", seen, {"result": Result(value=43)}) == 0.0
    assert answer("", Result(stdout="42"), {}) == 1.0
    with pytest.raises(InvalidArgument, match=r"^Result: success='no' is not True or False$"):
        Result(success="no")  # pyright: ignore[reportArgumentType]
    assert answer("", "42", {}) == 0.0
    assert result_of("42", {}) is None
    assert result_of({"unrelated": 1}, {}) is None


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (True, False),
        (np.True_, np.False_),
        (np.int64(1), 0),
        ("true", "False"),
        (np.array([1]), np.array([0])),
    ],
)
def test_success_may_come_in_any_shape_a_space_gives_it(yes: Any, no: Any) -> None:
    for transform in (MathAnswer(42), TaskCompletion()):
        assert transform("", {"value": 42, "success": yes}, {}) == 1.0
        assert transform("", {"value": 42, "success": no}, {}) == -0.5


def test_task_completion_asks_the_author() -> None:
    def long_enough(action: str, observation: Any, info: Mapping[str, Any]) -> bool:
        return len(action) > 3

    task = TaskCompletion(long_enough)
    assert task("abcd", None, {"result": {"success": True}}) == 1.0
    assert task("abc", None, {"result": {"success": True}}) == 0.0
    assert task("abcd", None, {"result": {"success": False}}) == -0.5
    assert task("abcd", None, {}) == 1.0
    assert TaskCompletion()("abcd", None, {}) == 0.0
    with pytest.raises(InvalidArgument, match=r"^TaskCompletion: completed is a function .* not True"):
        TaskCompletion(True)  # pyright: ignore[reportArgumentType]
