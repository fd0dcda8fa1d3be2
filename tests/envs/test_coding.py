"""envweave/Coding-v0: stdout, stderr and an exit code, and what safety and quality are worth."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.rewards import math_transform

CODING = "envweave/Coding-v0"


@pytest.fixture
def env() -> Iterator[Any]:
    made = ew.make(CODING)
    made.reset(seed=0)
    yield made
    made.close()


def seen(env: Any, code: str) -> tuple[str, str, int]:
    """The observation of a program."""
    observation = env.step(code)[0]
    assert env.observation_space.contains(observation)
    return observation["stdout"], observation["stderr"], observation["exit_code"]


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("print('Hello')", "Hello\n"),
        ("40 + 2", "42"),
        ("print('Hello')\n40 + 2", "Hello\n42"),
        ("import sys; _ = sys.stdout.write('no end')\n[1]", "no end\n[1]"),
        ("(1, 'a')", '[1, "a"]'),
        ("{'a': [True, None]}", '{"a": [true, null]}'),
        ("'é'", '"\\u00e9"'),
        ("{1}", "{1}"),
        ("x = 5", ""),
        ("None", ""),
        ("'42';", ""),
        ("", ""),
    ],
)
def test_the_value_of_the_last_expression_comes_last(env: Any, code: str, stdout: str) -> None:
    assert seen(env, code) == (stdout, "", 0)


def test_the_first_message_says_how_to_act(env: Any) -> None:
    (reported,) = ew.messages_of(env.reset()[1])
    assert reported["role"] == "user"
    assert "```python" in reported["content"]
    with pytest.raises(InvalidAction, match=f"^{CODING}: 'The answer is 42.' is no program; .*python"):
        ew.parse_action(env, "The answer is 42.")


def test_an_error_is_in_stderr_and_what_was_printed_stays(env: Any) -> None:
    stdout, stderr, exit_code = seen(env, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 / 0")
    assert (stdout, exit_code) == ("out\n", 1)
    assert stderr.startswith("err\nTraceback")
    assert stderr.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    "code", ["def f(:", "1\x00", "raise SystemExit(3)", "undefined", "import no_such_module"]
)
def test_a_failing_program_has_exit_code_one_and_the_episode_goes_on(env: Any, code: str) -> None:
    observation, _, terminated, truncated, _ = env.step(code)
    assert (observation["exit_code"], terminated, truncated) == (1, False, False)
    assert seen(env, "1") == ("1", "", 0)


def test_the_context_lasts_as_long_as_the_episode(env: Any) -> None:
    env.step("def double(x): return 2 * x")
    assert seen(env, "double(21)") == ("42", "", 0)
    env.reset()
    assert "NameError" in seen(env, "double(21)")[1]


@pytest.mark.parametrize("code", ["'x' * 10**6", "list(range(10**5))", "raise ValueError('x' * 10**6)"])
def test_however_much_there_is_to_show_it_is_in_the_space(env: Any, code: str) -> None:
    seen(env, code)
    seen(env, f"print('y' * 10**6)\n{code}")


# What a step is worth

AS_THERE = [
    ("print('Hello')", 0.1),
    ("1/0", 0.1),
    ("import os", -0.9),
    ("import  os", -0.9),
    ("import subprocess", -0.9),
    ("eval('1')", -0.9),
    ("exec('x = 1')", -0.9),
    ("__import__('os')", -0.9),
    ("open('a')", -0.9),
    ("def f(:", -0.1),
    ("x = 1\n" + "#" * 114, 0.0),
    ("import os\n" + "#" * 110, -1.0),
    ("x = (" + "1 + " * 30, -0.2),
    ("import os as o", -0.9),
]
"""What the coding environment of OpenEnv pays too, where its transforms fire."""
OTHERWISE = [
    ("# import os", 0.1),  # a comment does nothing: there it is -0.9
    ("'import os, eval('", 0.1),  # nor does a text
    ("().__class__.__bases__", -0.9),  # a way to every object: there 0.1, as no word of it is on its list
    ("e = eval", -0.9),  # there 0.1, as nothing is called
    ("from os import path", -0.9),  # there 0.1
    ("def f(: eval(", -0.1),  # what is no Python reaches for nothing: there -1.1
]
"""What it pays otherwise, because a program is read as Python reads it and not as text."""


@pytest.mark.parametrize(("code", "reward"), AS_THERE + OTHERWISE)
def test_safety_and_quality_are_paid_together(env: Any, code: str, reward: float) -> None:
    assert env.step(code)[1] == pytest.approx(reward)


def test_the_info_tells_the_program_and_what_is_wrong_with_it(env: Any) -> None:
    info = env.step("import os\neval('1')")[4]
    assert info["last_code"] == "import os\neval('1')"
    assert info["safety_violation"] == "eval, os"
    assert info["reward_parts"] == {"earned": 0.0, "style": 0.1, "penalty": -1.0}
    assert "safety_violation" not in env.step("1")[4]


def test_unsafe_names_can_be_allowed() -> None:
    env = ew.make(CODING, allow=("open",))
    env.reset(seed=0)
    *_, info = result = env.step("open('a', 'w').close()")
    assert result[1] == pytest.approx(0.1)
    assert "safety_violation" not in info
    assert env.step("import os")[4]["safety_violation"] == "os"
    env.close()


def test_another_transform_takes_its_place(env: Any) -> None:
    judged = ew.make(CODING, transform=math_transform(4))
    judged.reset(seed=0)
    assert judged.step("2 + 2")[1] == pytest.approx(1.1)
    judged.close()
    env.unwrapped.transform = None
    assert env.step("import os")[1] == 0.0


# An episode


def test_only_the_step_limit_ends_an_episode() -> None:
    env = ew.make(CODING, max_steps=3)
    env.reset(seed=0)
    ends = [env.step(code)[2:4] for code in ("final_answer(1)", "import os; os._exit(1)", "1")]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_the_state_tells_the_last_exit_code(env: Any) -> None:
    assert ew.state_of(env)["last_exit_code"] == 0
    env.step("1 / 0")
    state = ew.state_of(env)
    assert (state["last_exit_code"], state["step_count"], state["episode"]) == (1, 1, 0)
    env.reset()
    state = ew.state_of(env)
    assert (state["last_exit_code"], state["step_count"], state["episode"]) == (0, 0, 1)
    json.dumps(state)


def test_copies_and_pickles_go_on(env: Any) -> None:
    env.step("x = 7")
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert seen(other, "x") == ("7", "", 0)
        assert other.step("import os")[1] == pytest.approx(-0.9)
        other.close()


def test_a_vector_of_them_tells_of_each_row() -> None:
    envs = ew.make(CODING, num_envs=2)
    envs.reset(seed=0)
    observations, rewards, *_, infos = envs.step(("1", "import os"))
    assert list(observations["stdout"]) == ["1", ""]
    assert list(rewards) == pytest.approx([0.1, -0.9])
    assert list(infos["_safety_violation"]) == [False, True]
    assert list(infos["last_code"]) == ["1", "import os"]
    envs.close()


@pytest.mark.parametrize(
    "action",
    [None, 1, "x" * 65_537, "x" * 50_000_000, "\ud800"],
    ids=["None", "int", "long", "50 MB", "half a character"],
)
def test_an_invalid_action_is_refused(env: Any, action: Any) -> None:
    with pytest.raises(InvalidAction, match=CODING):
        env.step(action)
    assert seen(env, "1") == ("1", "", 0)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"allow": "open"}, "allow takes the names of violations"),
        ({"allow": 3}, "allow takes the names of violations, not 3"),
        ({"allow": ("opn",)}, "'opn' is no violation to be allowed"),
        ({"step_timeout": -1}, "step_timeout=-1 is no number of seconds"),
        ({"transform": 5}, "a transform is a function"),
    ],
    ids=["text", "number", "unknown", "timeout", "transform"],
)
def test_wrong_arguments_are_refused_by_name(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{CODING}: .*{said}"):
        ew.make(CODING, **kwargs)
