"""Reward transforms: the values of the usual sets, and how transforms compose."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from arithmetic_env import Arithmetic, judged, run

from envweave_gym.core.faults import InvalidAction, InvalidArgument, shown
from envweave_gym.rewards.transforms import (
    CodeQuality,
    CodeSafety,
    Composite,
    MathAnswer,
    RewardFailed,
    RewardTransform,
    Score,
    TaskCompletion,
    Transform,
    math_transform,
    safe_transform,
    score_of,
)

LONG = "1 + " * 40 + "1"


@pytest.mark.parametrize(
    ("expected", "code", "reward"),
    [
        (42, "21 * 2", 1.1),
        (8, "5+3", 1.1),
        (8, "5+4", 0.1),
        (8, "import os", -0.9),
        (8, "1/0", -0.4),
        (8, "import os\n5+3", -0.9),
        (8, "import os\n1/0", -0.9),
        (41, LONG, 1.0),
        (8, "def f(:", -0.6),
    ],
)
def test_math_set_pays_the_known_rewards(expected: int, code: str, reward: float) -> None:
    assert judged(math_transform(expected), code) == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("5+3", 1.1),
        ("1/0", -0.4),
        ("import os", -0.9),
        ("import os\n5+3", -0.9),
        ("'import os'", 1.1),
        ("1 # import os", 1.1),
        (LONG, 1.0),
        ("f(:", -0.6),
    ],
)
def test_safe_set_never_pays_for_a_violation(code: str, reward: float) -> None:
    assert judged(safe_transform(), code) == pytest.approx(reward, abs=1e-12)


@pytest.mark.parametrize(
    ("code", "reward"),
    [
        ("print('Hello')", 0.1),
        ("import os", -0.9),
        ("def f(:", -0.1),
        ("x" * 120, 0.0),
        ("1/0", 0.1),
        ("", 0.1),
    ],
)
def test_safety_and_quality_need_no_result(code: str, reward: float) -> None:
    assert Composite(CodeSafety(), CodeQuality())(code, None, {}) == pytest.approx(reward, abs=1e-12)


def generous(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return 100.0


def severe(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return -3.0


class Flattery(Transform):
    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        return Score(style=100.0)


def test_plain_functions_are_members() -> None:
    assert Composite(generous, CodeQuality())("1", None, {}) == 100.1
    assert score_of(generous, "1", None, {}) == Score(earned=100.0)
    assert Composite()("1", None, {}) == 0.0


def test_nothing_pays_for_a_violation_wherever_it_stands() -> None:
    for other in (generous, Flattery(), TaskCompletion()):
        for members in ((CodeSafety(), other), (other, CodeSafety()), (Composite(CodeSafety()), other)):
            assert Composite(*members)("import os", None, {"result": {"success": True}}) <= 0.0
    assert Composite(CodeSafety(), generous)("import os", None, {}) == -1.0


def test_a_violation_is_no_refuge_from_a_worse_reward() -> None:
    assert Composite(CodeSafety(), severe)("1", None, {}) == -3.0
    assert Composite(CodeSafety(), severe)("import os", None, {}) == -3.0


def test_neither_order_nor_nesting_matters() -> None:
    members = (MathAnswer(8), CodeSafety(), CodeQuality(), severe)
    for code in ("5+3", "import os", "f(:"):
        info = {"result": run(code)}
        flat = Composite(*members)(code, None, info)
        assert Composite(*reversed(members))(code, None, info) == pytest.approx(flat)
        assert Composite(Composite(*members[:2]), Composite(*members[2:]))(code, None, info) == pytest.approx(
            flat
        )


def test_scores_keep_the_more_severe_penalty() -> None:
    both = Score(earned=1.0, penalty=-1.0) + Score(style=0.5, penalty=-2.0) + Score(earned=1.0)
    assert both == Score(earned=2.0, style=0.5, penalty=-2.0)
    assert both.total == -1.5
    assert both.parts() == {"earned": 2.0, "style": 0.5, "penalty": -2.0}


@pytest.mark.parametrize("penalty", [0.0, 1.0, float("nan"), -float("inf"), "-1"])
def test_a_penalty_is_a_number_below_zero(penalty: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^Score: penalty is a number below zero"):
        Score(penalty=penalty)


NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), np.float32("nan"), None, "1.0", b"1", 1j]
NO_NUMBERS += [np.complex128(1), [1.0], np.array([1.0]), 10**400, Decimal("sNaN"), object()]


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: shown(value)[:20])
def test_a_reward_that_is_no_finite_number_raises_with_the_name_of_the_function(value: Any) -> None:
    def broken(action: str, observation: Any, info: Mapping[str, Any]) -> Any:
        return value

    for function in (Composite(broken), Composite(CodeSafety(), Composite(CodeQuality(), broken))):
        for code in ("1", "import os"):
            with pytest.raises(RewardFailed, match=r"^the reward function broken gave .* no finite number$"):
                function(code, None, {})
    for part in ("earned", "style"):
        with pytest.raises(InvalidArgument, match=f"^Score: {part} is a finite number, not "):
            Score(**{part: value})


@pytest.mark.parametrize("value", [1, True, np.float32(1), np.array(1.0), Fraction(1), Decimal(1)], ids=repr)
def test_a_finite_number_of_any_kind_is_a_reward(value: Any) -> None:
    assert Composite(lambda action, observation, info: value)("", None, {}) == 1.0


def test_finite_rewards_that_add_up_to_infinity_are_an_error() -> None:
    def huge(action: str, observation: Any, info: Mapping[str, Any]) -> float:
        return 1e308

    with pytest.raises(RewardFailed, match=r"^the reward function Composite\(.* raised InvalidArgument: "):
        score_of(Composite(huge, huge), "", None, {})
    with pytest.raises(InvalidArgument, match=r"^Score: its parts add up to inf"):
        Score(earned=1e308, style=1e308)


def test_a_member_that_raises_is_named() -> None:
    def broken(action: str, observation: Any, info: Mapping[str, Any]) -> float:
        raise InvalidAction("of another environment")

    class Unfinished(Transform):
        def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Any:
            return 1.0

    with pytest.raises(
        RewardFailed, match=r"^the reward function broken raised InvalidAction: of an"
    ) as caught:
        Composite(CodeSafety(), Composite(broken))("import os", None, {})
    assert isinstance(caught.value.__cause__, InvalidAction)
    with pytest.raises(RewardFailed, match=r"^the reward function Unfinished\(\) gave 1.0, which is no Sc"):
        Composite(Unfinished())("", None, {})


def test_rewards_are_floats_whatever_numbers_they_are_made_of() -> None:
    whole = Score(earned=1, style=2)
    assert [type(number) for number in (whole.total, *whole.parts().values())] == [float] * 3
    assert type(Composite(lambda action, observation, info: 1)("", None, {})) is float


def test_a_member_that_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"function \(action, observation, info\) -> reward, not 0.5"):
        Composite(CodeSafety(), 0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgument, match="not None"):
        RewardTransform(Arithmetic(), None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "transform",
    [
        math_transform(42),
        safe_transform(),
        MathAnswer([1, 2]),
        CodeSafety(allow=("os",)),
        Composite(generous),
    ],
    ids=["maths", "safe", "answer", "safety", "function"],
)
def test_transforms_pickle_copy_and_show_what_they_are(transform: Transform) -> None:
    for again in (pickle.loads(pickle.dumps(transform)), copy.deepcopy(transform)):
        assert repr(again) == repr(transform)
        for code in ("21 * 2", "import os", "f(:"):
            assert judged(again, code) == judged(transform, code)
    assert type(transform).__name__ in repr(transform)
