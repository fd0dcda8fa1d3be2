"""Reward transforms: their values, how they compose, and the wrapper around an environment."""

from __future__ import annotations

import ast
import copy
import operator
import pickle
import sys
import warnings
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Text
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import envweave_gym
from envweave_gym import NumericInfo
from envweave_gym.faults import Fault, FaultKind, InvalidAction, InvalidArgument
from envweave_gym.program_source import MAX_SOURCE
from envweave_gym.rewards import (
    CodeQuality,
    CodeSafety,
    Composite,
    MathAnswer,
    Result,
    RewardTransform,
    Score,
    TaskCompletion,
    Transform,
    math_transform,
    result_of,
    safe_transform,
    score_of,
)
from envweave_gym.stream import Event, EventKind, Stream

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](evaluate(left), evaluate(right))
        case _:
            raise TypeError(f"{type(node).__name__} is no arithmetic")


def run(code: str) -> Result:
    """Execute arithmetic (and imports, which do nothing)."""
    try:
        statement = ast.parse(code).body[-1]
        return Result(value=evaluate(statement.value) if isinstance(statement, ast.Expr) else None)
    except (SyntaxError, ArithmeticError, TypeError, KeyError, IndexError):
        return Result(success=False)


class Arithmetic(gymnasium.Env[str, str]):
    """Arithmetic in, its value out; ``info["result"]`` has the result, as code-executing environments do."""

    def __init__(self, own_reward: float = 0.25) -> None:
        self.observation_space = Text(10_000)
        self.action_space = Text(10_000)
        self.own_reward = own_reward
        self.extra: dict[str, Any] = {}
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return "ready", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        result = run(action)
        return str(result.value), self.own_reward, False, False, {"result": result, **self.extra}


def judged(transform: Transform, code: str) -> float:
    return transform(code, "", {"result": run(code)})


def right(expected: Any, value: Any, **fields: Any) -> bool:
    reward = MathAnswer(expected)("", "", {"result": {"success": True, "value": value, **fields}})
    assert reward in (0.0, 1.0)
    return reward == 1.0


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


@pytest.mark.parametrize(("length", "reward"), [(100, 0.1), (101, 0.0)])
def test_brevity_is_measured_without_surrounding_space(length: int, reward: float) -> None:
    assert CodeQuality()("\n\n" + "x" * length + "\n  ", None, {}) == reward


# Safety

VIOLATIONS = {
    "import os": {"os"},
    "import os.path as p": {"os"},
    "import math, subprocess": {"subprocess"},
    "from subprocess import run": {"subprocess"},
    "from os import *": {"os"},
    "from urllib import request": {"urllib.request"},
    "from random import _os": {"os"},
    "from io import open as o": {"open"},
    "if True:\n    def f():\n        import shutil": {"shutil"},
    "eval('1')": {"eval"},
    "exec('1')": {"exec"},
    "open('x')": {"open"},
    "e = eval; e('1')": {"eval"},
    "print(f'{open(1)}')": {"open"},
    "@exec\nclass A: pass": {"exec"},
    "\uff45\uff56\uff41\uff4c('1')": {"eval"},
    "__import__('o'+'s')": {"__import__"},
    "importlib.import_module('o' + 's')": {"importlib"},
    "import importlib as i\ni.import_module('os')": {"importlib"},
    "builtins.eval('1')": {"builtins"},
    "import builtins as b; b.eval('1')": {"builtins"},
    "os.system('ls')": {"os"},
    "getattr(__builtins__, 'ev'+'al')": {"__builtins__", "getattr"},
    "getattr(x, name)": {"getattr"},
    "getattr(x, '__bases__')": {"__bases__"},
    "getattr(*x)": {"getattr"},
    "g = getattr": {"getattr"},
    "from operator import attrgetter as a": set(),
    "from operator import attrgetter\nattrgetter('__class__.__base__')(())": {"__base__"},
    "import operator\noperator.methodcaller('__sub' + 'classes__')": {"methodcaller"},
    "().__class__.__bases__[0].__subclasses__()": {"__bases__", "__subclasses__"},
    "print.__self__": {"__self__"},
    "(lambda: 0).__globals__": {"__globals__"},
    "(i for i in ()).gi_frame.f_back": {"gi_frame", "f_back"},
    "match ():\n    case object(__class__=object(__base__=b)): pass": {"__base__"},
    "globals()['x']": {"globals"},
    "import sys as s; s.modules['os']": {"modules"},
    "import sys; t = sys; t.modules": {"modules"},
    "sys.modules": {"modules"},
    "io.open('x')": {"open"},
    "import platform; platform.os": {"os"},
    "import json; json.codecs.builtins.open": {"builtins", "open"},
}


@pytest.mark.parametrize("code", VIOLATIONS)
def test_violations_are_found_by_name(code: str) -> None:
    found = CodeSafety().violations(code)
    assert set(found) == VIOLATIONS[code]
    assert CodeSafety()(code, None, {}) == (-1.0 if found else 0.0)


@pytest.mark.parametrize(
    "code",
    [
        "# import os",
        "'import os'",
        '"""\nimport os\neval(1)\n"""',
        "print('open(1) __import__ eval(2)')",
        "import math, random, json, re, sys",
        "import osmium",
        "from math import *",
        "evaluate(1); reopen(2); opener = 3",
        "door.open(); model.eval(); frame.eval('a + b'); model.modules()",
        "re.compile('a')",
        "import re; re.compile('a')",
        "getattr(x, 'name')",
        "getattr(x, 'name', None)",
        "type(error).__name__; self.__class__.__name__; super().__init__()",
        "code = 'x'; code.strip()",
        "self.os = 'linux'; self.os",
        "import sys; sys.stdout.write('x')",
        "import io; io.StringIO('x')",
        "f(os=1, eval=2)",
        "import os as",
        "eval(",
        "",
    ],
)
def test_innocent_or_unparsable_code_is_no_violation(code: str) -> None:
    assert CodeSafety().violations(code) == ()
    assert CodeSafety()(code, None, {}) == 0.0


def test_what_a_task_needs_can_be_allowed() -> None:
    safety = CodeSafety(allow=("pathlib", "open"))
    assert safety("import pathlib\nopen('x')", None, {}) == 0.0
    assert safety.violations("import pathlib, os\nopen('x')") == ("os",)


def deep(depth: int, call: Any) -> Any:
    return call() if depth == 0 else deep(depth - 1, call)


def test_a_text_earns_the_same_however_deep_the_stack_it_is_judged_on() -> None:
    code = "import os\nx" + ".a" * 2_500
    assert judged_at_depth(code, 600) == judged_at_depth(code, 0) == -1.0


def judged_at_depth(code: str, depth: int) -> float:
    code += f" # {depth}"
    return deep(depth, lambda: CodeSafety()(code, None, {}))


UNREADABLE = {
    "parentheses": "(" * 10_000,
    "signs": "-" * 20_000 + "1",
    "attributes": "a" + ".b" * 20_000,
    "sum": "1" + "+1" * 20_000,
    "negations": "not " * 10_000 + "1",
    "NUL": "import os\0",
    "surrogate": "'\ud800'",
    "digits": "9" * 5_000,
    "fields": "f'" + "{" * 300,
}


@pytest.mark.parametrize("code", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_code_python_cannot_read_is_bad_quality_but_no_violation(code: str) -> None:
    assert CodeSafety()(code, None, {}) == 0.0
    assert CodeQuality()(code, None, {}) == pytest.approx(-0.1 if len(code) <= 100 else -0.2)


def test_code_too_long_to_read_is_not_vouched_for() -> None:
    code = "# " + "x" * MAX_SOURCE + "\nimport os"
    assert CodeSafety().violations(code) == ("length",)
    assert safe_transform()(code, None, {"result": {"success": True}}) == pytest.approx(-1.2)


def test_warnings_about_the_text_are_neither_shown_nor_mistaken_for_errors() -> None:
    filters = list(warnings.filters)
    for action in ("error", "always"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            assert CodeQuality()(f"r = '\\d'; q = 1if r else 2 # {action}", None, {}) == 0.1
        assert caught == []
    assert warnings.filters == filters


# Answers


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
        (float("nan"), float("nan")),
        (float("nan"), "nan"),
        ([float("nan")], [float("nan")]),
        (float("inf"), "-inf"),
        (10**30 + 1, str(10**30)),
        (1.5, "1/0"),
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
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="tolerance is a number of at least zero"):
            MathAnswer(1, tolerance=tolerance)


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


# Composition


def generous(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return 100.0


def severe(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return -3.0


def not_a_number(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return float("nan")


class Flattery(Transform):
    def score(self, action: str, observation: Any, info: Mapping[str, Any]) -> Score:
        return Score(style=100.0)


def test_plain_functions_are_members() -> None:
    assert Composite(generous, CodeQuality())("1", None, {}) == 100.1
    assert score_of(generous, "1", None, {}) == Score(earned=100.0)
    assert Composite()("1", None, {}) == 0.0


def test_nothing_pays_for_a_violation_wherever_it_stands() -> None:
    for other in (generous, Flattery(), not_a_number, TaskCompletion()):
        for members in ((CodeSafety(), other), (other, CodeSafety()), (Composite(CodeSafety()), other)):
            assert Composite(*members)("import os", None, {"result": {"success": True}}) <= 0.0
    for other in (generous, not_a_number):
        assert Composite(CodeSafety(), other)("import os", None, {}) == -1.0


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
    for penalty in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="below zero"):
            Score(penalty=penalty)


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


# The wrapper


def test_the_wrapper_pays_what_the_transform_says() -> None:
    env = RewardTransform(Arithmetic(), math_transform(42))
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("21 * 2")
    assert (observation, reward, terminated, truncated) == ("42", 1.1, False, False)
    assert info["env_reward"] == 0.25
    assert info["reward_parts"] == {"earned": 1.0, "style": 0.1}
    assert info["result"] == Result(value=42)
    _, reward, _, _, info = env.step("import os")
    assert reward == -0.9
    assert info["reward_parts"] == {"earned": 0.0, "style": 0.1, "penalty": -1.0}
    assert type(reward) is float


def test_the_transform_can_be_replaced_and_may_read_the_environments_reward() -> None:
    env = RewardTransform(Arithmetic(), math_transform(42))
    env.reset(seed=0)
    env.transform = Composite(lambda action, observation, info: 2 * info["env_reward"], CodeSafety())
    assert env.step("1 + 1")[1] == 0.5
    assert env.step("import os")[1] == -1.0


def test_an_outer_wrapper_does_not_overwrite_a_violation() -> None:
    env = RewardTransform(RewardTransform(Arithmetic(), CodeSafety()), TaskCompletion())
    env.reset(seed=0)
    assert env.step("1 + 1")[1] == 1.0
    assert env.step("import os")[1] == -1.0


def test_lost_steps_and_reset_rows_are_not_judged() -> None:
    core = Arithmetic(own_reward=0.0)
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    core.extra = {"fault": Fault(FaultKind.CRASH, "gone", retryable=True)}
    *_, info = env.step("import os")
    assert "reward_parts" not in info
    assert env.step("import os")[1] == 0.0
    core.extra = {"stream": Stream((), (Event(0, EventKind.EPISODE_START),))}
    assert env.step("21 * 2")[1] == 0.0
    core.extra = {"stream": Stream((), (Event(1, EventKind.ACT, "agent"),))}
    assert env.step("21 * 2")[1] == 1.1


@pytest.mark.parametrize("bare", [NumericInfo, lambda env: env])
def test_reset_rows_are_not_paid_for_whatever_is_left_of_the_info(bare: Any) -> None:
    env = RewardTransform(
        bare(envweave_gym.make("envweave/Echo-v0", autoreset=True, max_steps=1)), always_one
    )
    env.reset(seed=0)
    assert [env.step("x")[1] for _ in range(4)] == [1.0, 0.0, 1.0, 0.0]


def always_one(action: str, observation: Any, info: Mapping[str, Any]) -> float:
    return 1.0


@pytest.mark.parametrize("foreign", [{"fault": "a line on the map"}, {"fault": None}, {"stream": "a river"}])
def test_what_a_foreign_environment_calls_fault_or_stream_is_its_own(foreign: dict[str, Any]) -> None:
    core = Arithmetic()
    env = RewardTransform(core, always_one)
    env.reset(seed=0)
    core.extra = foreign
    assert env.step("1 + 1")[1] == 1.0


def test_an_action_that_is_no_text_is_refused_and_the_episode_goes_on() -> None:
    core = Arithmetic()
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match="Arithmetic: a reward transform judges text, not 42; send a str"):
        env.step(42)  # pyright: ignore[reportArgumentType]
    assert core.steps == 0
    assert env.step("21 * 2")[1] == 1.1


def test_the_wrapped_environment_pickles_and_copies_in_mid_episode() -> None:
    core = Arithmetic()
    env = RewardTransform(core, math_transform(42))
    env.reset(seed=0)
    env.step("1 + 1")
    for again in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert isinstance(again.env, Arithmetic)
        assert again.env.steps == 1
        assert again.step("21 * 2")[1] == 1.1
    assert core.steps == 1


def test_vector_environments_gather_the_parts() -> None:
    def make(expected: int) -> RewardTransform[str]:
        return RewardTransform(Arithmetic(), math_transform(expected))

    envs = SyncVectorEnv([lambda: make(42), lambda: make(8)])
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(("21 * 2", "import os"))
    assert rewards.tolist() == [1.1, -0.9]
    assert [result.value for result in infos["result"]] == [42, None]
    assert infos["reward_parts"]["earned"].tolist() == [1.0, 0.0]
    assert infos["reward_parts"]["_penalty"].tolist() == [False, True]
    envs.close()


# Whatever text

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=80)
TOKENS = [
    "import os",
    "from ",
    "    ",
    "eval",
    "getattr",
    "__class__",
    " if ",
    "lambda ",
    "match ",
    "case ",
    "await ",
]
TOKENS += ['"""', "f'", "\\d", "\\N{", ":=", "0x1", "nan", "1e999", "1/0", "Fraction(", "np.float64("]
TOKENS += [*".()[]{}:'\"@=*,-#j1\n\r\x0c\0\ud800"]
FRAGMENTS = st.lists(st.sampled_from(TOKENS), max_size=30).map("".join)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(text=ANY_TEXT | FRAGMENTS, value=ANY_TEXT | FRAGMENTS | st.none(), success=st.booleans())
def test_no_text_makes_a_transform_raise(text: str, value: str | None, success: bool) -> None:
    result = {"value": value, "success": success, "stdout": text}
    for expected in (42, "text", [1, "a"], 1 + 2j, True, None):
        for reward in (
            math_transform(expected)(text, result, {}),
            MathAnswer(expected)(text, "", {"result": result}),
        ):
            assert -1.2 <= reward <= 1.1
    assert -1.2 <= safe_transform()(text, text, {"result": result}) <= 1.1


def test_the_recursion_limit_is_left_alone() -> None:
    limit = sys.getrecursionlimit()
    CodeSafety()("b" + ".b" * 20_000, None, {})
    assert sys.getrecursionlimit() == limit
