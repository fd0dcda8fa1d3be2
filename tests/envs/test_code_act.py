"""envweave/CodeAct-v0: what programs may be, what comes of them, and what an episode is."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from code_episodes import CODE_ACT, ran, settles, value
from sandboxes import WORKER

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, NotAvailable, ResetNeeded
from envweave_gym.envs.code.program_env import MAX_CODE
from envweave_gym.rewards import RewardFailed, math_transform

Make = Callable[..., Any]


# Programs


def test_variables_last_as_long_as_the_episode(code_act: Make) -> None:
    env = code_act()
    assert value(env, "x = 20\ny = 1") is None
    assert value(env, "2 * x + y") == 41
    env.reset(seed=1)
    assert ran(env, "x").error_type == "NameError"


def test_a_fresh_namespace_has_math(code_act: Make) -> None:
    assert value(code_act(), "math.sqrt(16)") == 4.0


def test_output_and_value_are_observed(code_act: Make) -> None:
    observation, reward, terminated, truncated, info = code_act().step("print('out')\n1, 'two'")
    assert observation == {
        "stdout": "out\n",
        "stderr": "",
        "value": "(1, 'two')",
        "exception": "",
        "success": 1,
    }
    assert info["result"].value == [1, "two"]
    assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("x = '", "SyntaxError"),
        ("print(1)\x00", "null bytes"),
        ("raise SystemExit(3)", "SystemExit"),
        ("  indented", "IndentationError"),
        ("raise BaseException", "BaseException"),
    ],
)
def test_errors_are_observed_and_the_episode_goes_on(code_act: Make, code: str, kind: str) -> None:
    env = code_act()
    env.step("x = 1")
    observation, _, terminated, truncated, info = env.step(code)
    assert kind in observation["exception"]
    assert (observation["success"], terminated, truncated) == (0, False, False)
    assert info["result"].error_type in observation["exception"]
    assert value(env, "x") == 1


def test_output_before_an_error_is_observed(code_act: Make) -> None:
    observation = code_act().step("print('before')\n1 / 0")[0]
    assert observation["stdout"] == "before\n"
    assert observation["exception"].endswith("ZeroDivisionError: division by zero")


def test_a_traceback_shows_only_lines_of_the_program(code_act: Make) -> None:
    env = code_act()
    env.step("def broken():\n    return [][0]")
    trace = env.step("broken()")[0]["exception"]
    assert "return [][0]" in trace
    assert "envweave" not in trace
    assert os.getcwd() not in trace


@pytest.mark.parametrize("code", ["", "# nothing", "\n\n", "pass", "x = 1;", "None"])
def test_a_program_may_have_no_value(code_act: Make, code: str) -> None:
    done = ran(code_act(), code)
    assert (done.success, done.value, done.shown) == (True, None, "")


@pytest.mark.parametrize(
    "action",
    [None, 5, b"1", ["1"], {"code": "1"}, "x" * (MAX_CODE + 1), "'\ud800'"],
    ids=["None", "int", "bytes", "list", "dict", "too long", "half a character"],
)
def test_an_invalid_action_is_refused_and_the_episode_goes_on(code_act: Make, action: Any) -> None:
    env = code_act()
    env.step("x = 1")
    with pytest.raises(InvalidAction, match=f"{CODE_ACT}: action .* is not in Unicode"):
        env.step(action)
    assert value(env, "x") == 1
    assert ew.state_of(env)["step_count"] == 2


def test_fifty_megabytes_are_refused_at_once(code_act: Make) -> None:
    with pytest.raises(InvalidAction) as refusal:
        code_act().step("x" * 50_000_000)
    assert len(str(refusal.value)) < 500


def test_the_longest_program_runs(code_act: Make) -> None:
    assert value(code_act(), "7".rjust(MAX_CODE)[:-2].replace(" ", "\n") + "7") == 7


def test_much_output_is_cut_in_the_middle(code_act: Make) -> None:
    env = code_act()
    observation = env.step("print('head'); print('x' * 1_000_000); print('tail')")[0]
    assert observation["stdout"].startswith("head")
    assert observation["stdout"].endswith("tail\n")
    assert env.observation_space.contains(observation)


@pytest.mark.parametrize("code", ["'x' * 10**6", "raise ValueError('x' * 10**6)", "10**100000", "'\\ud800'"])
def test_observations_are_in_their_space(code_act: Make, code: str) -> None:
    env = code_act()
    assert env.observation_space.contains(env.step(code)[0])


@pytest.mark.parametrize("env_id", [CODE_ACT, "envweave/Coding-v0", "envweave/REPL-v0"])
def test_observations_that_a_program_forges_are_in_their_space(env_id: str) -> None:
    texts = "shown='s' * 10**6, error='e' * 10**6, variables={'v' * 10**5: [1, 2]}"
    env = ew.make(env_id)
    env.reset(seed=0)
    observation, _, _, _, info = env.step(
        f"{WORKER}worker.channel.send(dict(ev='result', seq=m['seq'], {texts}))"
    )
    assert env.observation_space.contains(observation)
    assert len(info["result"].error) < 10**5
    assert max(len(one["content"]) for one in ew.messages_of(info)) < 10**5
    env.close()


def test_replies_of_models_are_read_out_of_fences(code_act: Make) -> None:
    env = code_act()
    assert ew.parse_action(env, "I add.\n```python\n1 + 1\n```\nThat is it.") == "1 + 1\n"
    assert ew.parse_action(env, "1 + 1") == "1 + 1"
    with pytest.raises(ValueError, match=CODE_ACT):
        ew.parse_action(env, "x" * (MAX_CODE + 1))


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\n1\n```\nNo, rather:\n```python\n2\n```", "2\n"),
        ("```python\n2\n```\nIt prints:\n```\n1\n```", "2\n"),
        ("```\n1\n```\n```\n2\n```", "2\n"),
        ("<think>\n```python\n1\n```\n</think>\n```python\n2\n```", "2\n"),
        ("so:\n```\n2\n```\nwhich prints\n```output\n3\n```", "2\n"),
        ("maybe\n```python\n1\n```\n</think>\n2", "2"),
        ("```python\n1\n```\n```python\n2", "2"),
        ("print('```')", "print('```')"),
        ('x = """\n```python\n1\n```\n"""', 'x = """\n```python\n1\n```\n"""'),
    ],
)
def test_the_last_program_of_a_reply_is_the_action(code_act: Make, reply: str, code: str) -> None:
    assert ew.parse_action(code_act(), reply) == code


@pytest.mark.parametrize(
    "reply",
    [
        "The answer is 42.",
        "I think the answer is 42",
        "Let me look at that first:\nx = 1",
        "Sure! I'd multiply (both numbers).",
        "<think>21 * 2</think>The answer is 42.",
    ],
)
def test_a_reply_in_plain_words_is_refused_with_advice(code_act: Make, reply: str) -> None:
    with pytest.raises(InvalidAction, match=rf"^{CODE_ACT}: .* is no program; .*python.*final_answer"):
        ew.parse_action(code_act(), reply)


@pytest.mark.parametrize(
    "code",
    ["", "42", "def f(:", "x = 5 apples", "print 'a b c'", "for x y in z", "Answer: 42", "a b", "if x y z:"],
)
def test_a_program_that_may_be_wrong_is_an_action(code_act: Make, code: str) -> None:
    assert ew.parse_action(code_act(), code) == code


# Ends


@pytest.mark.parametrize("reply", [None, 5, b"1"])
def test_a_reply_that_is_no_text_is_refused(code_act: Make, reply: Any) -> None:
    with pytest.raises(InvalidAction, match=f"{CODE_ACT}: an action is parsed from text, not from"):
        ew.parse_action(code_act(), reply)


def test_a_final_answer_ends_the_episode_at_once(code_act: Make) -> None:
    env = code_act()
    *_, terminated, truncated, info = env.step(
        "try:\n    final_answer([1, 2])\nexcept Exception: pass\nx = 1"
    )
    assert (terminated, truncated) == (True, False)
    assert info["result"].final.value == [1, 2]
    with pytest.raises(ew.ResetNeeded):
        env.step("x")


def test_printing_what_looks_like_an_answer_ends_nothing(code_act: Make) -> None:
    assert code_act().step("print('final_answer(666) FINAL(666)')")[2] is False


def test_the_step_limit_truncates(code_act: Make) -> None:
    env = code_act(max_steps=2)
    assert env.step("1")[2:4] == (False, False)
    assert env.step("1")[2:4] == (False, True)


def test_a_built_in_name_has_the_same_meaning_in_the_next_step(code_act: Make) -> None:
    env = code_act()
    env.step("final_answer = None")
    assert env.step("final_answer(1)")[2] is True


# Time, and losses


def test_a_step_that_takes_too_long_is_interrupted_and_keeps_its_variables(code_act: Make) -> None:
    env = code_act(step_timeout=0.5)
    done = ran(env, "x = 1\nwhile True: pass")
    assert (done.success, done.timed_out, done.state_lost) == (False, True, False)
    assert value(env, "x") == 1


def test_a_step_that_is_killed_loses_its_variables_and_the_episode_goes_on(code_act: Make) -> None:
    env = code_act(step_timeout=0.5)
    env.step("x = 1")
    done = ran(env, "sum(range(10 ** 12))")
    assert (done.timed_out, done.state_lost, done.restored) == (True, True, False)
    assert ran(env, "x").error_type == "NameError"
    assert value(env, "math.floor(1.5)") == 1


def test_a_loss_ends_the_episode_where_that_is_wanted(code_act: Make) -> None:
    env = code_act(on_lost="end")
    assert env.step("import os; os._exit(1)")[2:4] == (True, False)
    env.reset()
    assert value(env, "1") == 1


def test_a_checkpoint_takes_back_a_step_that_was_lost(code_act: Make) -> None:
    env = code_act(checkpoint=True, on_lost="end")
    env.step("x = 1")
    *_, terminated, _, info = env.step("x = 2\nimport os; os._exit(1)")
    assert (info["result"].state_lost, info["result"].restored, terminated) == (False, True, False)
    assert value(env, "x") == 1


def test_without_a_copy_a_step_runs_all_the_same(code_act: Make) -> None:
    env = code_act(checkpoint=True)
    env.step("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
    assert value(env, "6 * 7") == 42
    assert ran(env, "import os; os._exit(1)").state_lost


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_process_that_was_killed_between_steps_is_a_loss(code_act: Make, checkpoint: bool) -> None:
    env = code_act(checkpoint=checkpoint)
    pid = value(env, "import os; x = 1; os.getpid()")
    os.kill(pid, signal.SIGKILL)
    assert settles(lambda: not psutil.pid_exists(pid))
    assert ran(env, "x").state_lost
    assert ran(env, "x").error_type == "NameError"


# What is told


def test_the_task_is_in_the_first_message(code_act: Make) -> None:
    env = code_act(task="Add 1 and 2.")
    (reported,) = ew.messages_of(env.reset()[1])
    assert reported["content"].startswith("Add 1 and 2.\n\nWrite a Python program")
    (reported,) = ew.messages_of(env.reset(options={"task": "Add 3 and 4."})[1])
    assert reported["content"].startswith("Add 3 and 4.\n")


def test_the_first_message_names_final_answer_also_without_a_task(code_act: Make) -> None:
    (reported,) = ew.messages_of(code_act().reset()[1])
    how, _, functions = reported["content"].partition("\n\n")
    assert "```python" in how
    assert "final_answer" in how
    assert functions.splitlines() == [
        "There are these functions:",
        "- final_answer(x: Any) -> None: Give the answer, which ends the episode.",
    ]


def test_a_step_tells_what_it_showed(code_act: Make) -> None:
    env = code_act(render_mode="ansi")
    (reported,) = ew.messages_of(env.step("print('seen')\n40 + 2")[4])
    assert reported["content"] == env.render() == "seen\n42"
    (reported,) = ew.messages_of(env.step("x = 1")[4])
    assert reported["content"] == "(no output)"


def test_the_state_tells_the_variables(code_act: Make) -> None:
    env = code_act()
    env.step("x, words = 1, ['a']\nimport json")
    assert ew.state_of(env)["variables"] == {"x": "int", "words": "list"}
    assert ew.state_of(env)["isolation"] == "landlock"
    env.reset()
    assert ew.state_of(env)["variables"] == {}


def test_a_seed_decides_what_programs_draw(code_act: Make) -> None:
    env, drawn = code_act(), []
    for seed in (1, 1, 2):
        env.reset(seed=seed)
        drawn.append(value(env, "import random; random.random()"))
    assert drawn[0] == drawn[1] != drawn[2]


# Rewards


def test_a_transform_says_what_a_step_is_worth(code_act: Make) -> None:
    env = code_act(transform=math_transform(42))
    *_, info = result = env.step("21 * 2")
    assert result[1] == pytest.approx(1.1)
    assert info["reward_parts"] == {"earned": 1.0, "style": 0.1}
    assert env.step("1 / 0")[1] == pytest.approx(-0.4)


def test_a_transform_may_be_replaced_in_mid_episode(code_act: Make) -> None:
    env = code_act(transform=lambda action, observation, info: 1.0)
    assert env.step("1")[1] == 1.0
    env.unwrapped.transform = lambda action, observation, info: -2.0
    assert env.step("1")[1] == -2.0
    env.unwrapped.transform = None
    assert env.step("1")[1] == 0.0
    with pytest.raises(InvalidArgument, match="a transform is a function"):
        env.unwrapped.transform = 5


def test_a_transform_that_fails_is_no_reward(code_act: Make) -> None:
    env = code_act(transform=lambda action, observation, info: math.nan)
    with pytest.raises(RewardFailed, match=CODE_ACT):
        env.step("1")


# Arguments


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"step_timeout": 0}, "step_timeout=0 is no number of seconds"),
        ({"step_timeout": "1"}, "step_timeout='1' is no number of seconds"),
        ({"checkpoint": 1}, "checkpoint=1 is not True or False"),
        ({"files": "no"}, "files='no' is not True or False"),
        ({"tools_per_episode": 1}, "tools_per_episode=1 is not True or False"),
        ({"warm": 3}, r"warm=3 must be names of modules, such as \('numpy',\)"),
        ({"on_lost": "ignore"}, "on_lost='ignore' is unknown; there are 'restart' and 'end'"),
        ({"isolation": "none"}, "isolation"),
        ({"transform": "math"}, "a transform is a function"),
        ({"memory": "much"}, "memory"),
        ({"python": 3}, "python=3 is no path of an interpreter"),
        ({"warm": "json"}, "warm='json' .*names of modules"),
        ({"warm": [5]}, "warm=.5. .*names of modules"),
        ({"tols": []}, "takes no argument 'tols'"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else "",
)
def test_wrong_arguments_are_refused_by_name(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refusal:
        ew.make(CODE_ACT, **kwargs)
    assert CODE_ACT in str(refusal.value)


@pytest.mark.parametrize("env_id", [CODE_ACT, "envweave/Coding-v0", "envweave/REPL-v0"])
def test_an_interpreter_that_does_not_run_is_refused_with_the_id(env_id: str) -> None:
    env = ew.make(env_id, python="/no/python")
    with pytest.raises(NotAvailable, match=f"^{env_id}: python='/no/python' does not run: .*; name another"):
        env.reset(seed=1)
    env.close()


def test_an_episode_may_follow_a_first_reset_that_was_refused() -> None:
    env = ew.make("envweave/REPL-v0", llm_query_fn=str.upper)
    for options in ({"max_iterations": 0}, {"task_prompt": 5}):
        with pytest.raises(InvalidArgument):
            env.reset(options=options)
    env.reset()
    assert env.step("1")[0]["stdout"] == "1\n"
    assert env.step("FINAL(1)")[1:3] == (1.0, True)
    env.close()


def test_unknown_reset_options_are_refused(code_act: Make) -> None:
    with pytest.raises(InvalidArgument, match="reset takes no option 'tsk'"):
        code_act().reset(options={"tsk": "x"})


def test_a_reset_while_a_program_runs_ends_that_step_and_not_the_next_episode(code_act: Make) -> None:
    env = code_act(step_timeout=60)
    with ThreadPoolExecutor(1) as other:
        stepped = other.submit(env.unwrapped.step, "while True: pass")
        while env.unwrapped._session._step is None:
            time.sleep(0.01)
        time.sleep(0.1)
        env.unwrapped.reset(seed=1)
        with pytest.raises(ResetNeeded, match="the episode was ended while a program ran"):
            stepped.result(5)
    assert env.unwrapped.step("1")[0]["value"] == "1"
    assert [step.code for step in env.unwrapped._journal.steps] == ["1"]
