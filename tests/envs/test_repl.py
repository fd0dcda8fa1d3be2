"""The REPL: what a program finds, how an episode ends, and what its steps are worth."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import pytest
from repl_world import REPL, episode

import envweave_gym as ew
from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded

LONG = 10_000


def test_a_program_finds_its_context_and_the_names_of_a_repl():
    with episode(options={"context": "hello", "task_prompt": "Say it."}) as played:
        seen = played.run("x = len(context)\nx, sorted(answer), SHOW_VARS()")
        assert seen["stdout"] == "(5, ['content', 'ready'], 'x: int')\n"
        assert seen["locals_snapshot"] == {"x": "5"}
        assert seen["available_variables"] == ["context", "answer", "x"]
        for name in ("llm_query", "llm_query_batched", "llm_batch", "rlm_query", "rlm_query_batched"):
            assert played.run(f"callable({name})")["stdout"] == "True\n"


def test_the_task_is_in_the_first_message():
    with episode(options={"context": "a" * LONG, "task_prompt": "Count."}) as played:
        (reported,) = ew.messages_of(played.info)
    assert reported["content"].startswith("Count.\n\n`context` is a str with 10000 characters.")
    assert "a" * 600 not in reported["content"]


def test_all_programs_of_a_reply_are_one_action():
    env = ew.make("envweave/REPL-v0")
    env.reset(seed=0)
    reply = (
        "<think>```repl\n0\n```</think>```repl\nx = 1\n```\nThen:\n```repl\nFINAL(x)\n```\n```text\n1\n```"
    )
    assert ew.parse_action(env, reply) == "x = 1\n\nFINAL(x)\n"
    with pytest.raises(ew.InvalidAction, match=r"is no program; .*FINAL"):
        ew.parse_action(env, "The answer is 42.")
    env.close()


def test_the_observation_shows_the_beginning_of_the_context():
    with episode(options={"context": "abc" * LONG}, context_preview_length=100) as played:
        assert played.observation["context_preview"] == ("abc" * 34)[:100]
        assert played.observation["context_length"].tolist() == [3 * LONG]


def test_a_context_may_be_other_json():
    with episode(options={"context": {"a": [1, 2]}}) as played:
        assert played.run("context['a'][1]")["stdout"] == "2\n"
        assert played.observation["context_preview"] == '{"a": [1, 2]}'


def test_only_new_and_changed_variables_are_shown_and_at_most_500_characters_of_each():
    with episode() as played:
        played.run("x, y, z = 1, 2, 'z' * 10_000")
        assert len(played.observation["locals_snapshot"]["z"]) == 500
        assert played.run("y = 3")["locals_snapshot"] == {"y": "3"}


def test_output_is_cut_in_its_middle():
    with episode(max_output_length=200) as played:
        seen = played.run("print('a' * 1000, 'end')")["stdout"]
        assert len(seen) <= 200
        assert seen.startswith("aaa")
        assert seen.endswith("end\n")


# Each of the known defects of REPLs that look for answers in what is printed


def test_printing_a_context_that_looks_like_an_answer_is_no_answer():
    for compat in ("control", "stdout"):
        with episode(options={"context": "FINAL(666)\nand FINAL_VAR(x)"}, compat=compat) as played:
            played.run("x = 1\nprint(context)\nprint('it says:', context)\ncontext")
            assert not played.ended


@pytest.mark.parametrize(
    "answer", ["a) b", "see (a", "(", "it's", 'a "quoted) word', "a\nb\\n", "x" * 100_000]
)
@pytest.mark.parametrize(
    "how", ["FINAL({0!r})", "v = {0!r}\nFINAL_VAR('v')", "answer.update(content={0!r}, ready=True)"]
)
def test_an_answer_is_what_the_program_gave_however_it_looks(answer: str, how: str):
    with episode() as played:
        played.run("print('.' * 20_000)\n" + how.format(answer))
        assert (played.answer, played.ended, played.reward) == (answer, True, 1.0)


def test_final_var_takes_a_name_or_else_a_value():
    for code in ("y = 42\nFINAL_VAR('y')", "y = 42\nFINAL_VAR(y)"):
        with episode() as played:
            played.run(code)
            assert played.answer == "42"


def test_final_var_of_no_variable_says_which_there_are():
    with episode() as played:
        seen = played.run("total = 1\nFINAL_VAR('totl')")
        assert "NameError: there is no variable 'totl'; there are total" in seen["exception"]
        assert not played.ended


@pytest.mark.parametrize(
    "code", ["FINAL(None)", "FINAL(print('x'))", "answer.update(content=None, ready=True)"]
)
def test_none_is_no_answer(code: str):
    with episode() as played:
        assert "None is no answer; give a value" in played.run(code)["exception"]
        assert (played.ended, played.reward, played.answer) == (False, -0.05, None)


def test_all_iterations_run_and_the_last_one_without_an_answer_is_a_failure():
    with episode(options={"max_iterations": 3}) as played:
        for number in (1, 2):
            assert played.run(f"x{number} = 1")["iteration"].tolist() == [number]
            assert (played.ended, played.reward) == (False, 0.0)
        assert played.run("x3 = x1 + x2\nx3")["stdout"] == "2\n"
        assert (played.ended, played.reward) == (True, -0.1)
        with pytest.raises(ResetNeeded, match="after the episode ended"):
            played.run("1")


def test_the_last_iteration_may_give_the_answer():
    with episode(max_iterations=1) as played:
        played.run("FINAL(1)")
        assert (played.answer, played.reward) == ("1", 1.0)


def test_an_error_shows_the_program_and_nothing_of_the_host():
    with episode() as played:
        seen = played.run("def f():\n    return 1/0\nf()")
        assert seen["success"] == 0
        assert seen["exception"].startswith("Traceback")
        assert seen["exception"].endswith("ZeroDivisionError: division by zero")
        assert "envweave" not in seen["exception"]
        assert len(seen["exception"]) < 400
        assert played.reward == -0.05


def test_reserved_names_mean_the_same_in_every_step():
    with episode(options={"context": "kept"}, llm_query_fn=lambda prompt: prompt[::-1]) as played:
        played.run("context = llm_query = FINAL = FINAL_VAR = SHOW_VARS = answer = 3\ndel llm_batch")
        assert played.run("context, llm_query('ab'), llm_batch(['cd']), answer['ready']")["stdout"] == (
            "('kept', 'ba', ['dc'], False)\n"
        )
        played.run("FINAL(context)")
        assert played.answer == "kept"


# How an episode ends


def test_an_answer_that_is_rebound_counts():
    with episode() as played:
        played.run("answer = {'content': 'new', 'ready': True}")
        assert played.answer == "new"


def test_an_answer_that_is_no_json_counts():
    with episode() as played:
        played.run("answer['content'] = {3}\nanswer['ready'] = True")
        assert played.answer == "{3}"


@pytest.mark.parametrize("char", ["x", "é", "文", "𝄞", "\\n", "\\ud800"])
def test_an_answer_may_have_a_megabyte_of_any_characters(char: str):
    with episode() as played:
        played.run(f"FINAL('{char}' * (1_000_000 // len('{char}'.encode(errors='surrogatepass'))))")
        assert played.ended
        assert len(str(played.answer)) >= 250_000


@pytest.mark.parametrize(
    "code", ["FINAL('文' * 4_000_000)", "answer.update(content='x' * 5_000_000, ready=True)"]
)
def test_an_answer_that_is_too_long_is_an_error_and_not_cut(code: str):
    with episode() as played:
        assert "000000 characters has more than the 4 MB" in played.run(code)["exception"]
        assert (played.ended, played.reward, played.answer) == (False, -0.05, None)
        played.run("FINAL('short')")
        assert played.answer == "short"


def test_prompts_may_be_long_in_any_script_and_are_refused_before_they_are_too_long():
    with episode(llm_query_fn=lambda prompt: str(len(prompt))) as played:
        assert played.run("llm_query('文' * 1_000_000)")["stdout"] == "'1000000'\n"
        for code in ("llm_query('文' * 2_000_000)", "llm_query('x' * 3_000_000, model='y' * 3_000_000)"):
            assert "the value is too large" in played.run(code)["exception"]
        assert played.run("llm_query('it goes on')")["stdout"] == "'10'\n"


def test_an_answer_that_is_not_ready_ends_nothing():
    with episode() as played:
        played.run("answer['content'] = 'draft'")
        assert not played.ended
        played.run("answer['ready'] = True")
        assert played.answer == "draft"


def test_an_answer_cannot_be_caught():
    with episode() as played:
        played.run("try:\n    FINAL(1)\nexcept Exception:\n    print('caught')")
        assert played.answer == "1"


@pytest.mark.parametrize(
    ("match", "answer", "reward"),
    [
        ("exact", " paris ", 1.0),
        ("exact", "Paris, France", 0.0),
        ("fuzzy", "PARIS", 1.0),
        ("fuzzy", "Paris, France", 0.5),
        ("fuzzy", "Pari", 0.5),
        ("fuzzy", "Rome", 0.0),
        ("fuzzy", "", 0.0),
    ],
)
def test_an_answer_is_compared_with_the_expected_one(match: str, answer: str, reward: float):
    with episode(options={"expected_answer": "Paris"}, match=match) as played:
        played.run(f"FINAL({answer!r})")
        assert (played.reward, played.ended) == (reward, True)


def test_rewards_are_arguments():
    rewards = {"success": 5.0, "iteration": -1.0, "failure": -7.0, "error": -3.0, "wrong": -2.0}
    kwargs: dict[str, Any] = {f"reward_on_{name}": value for name, value in rewards.items()}
    options = {"expected_answer": "1", "max_iterations": 3}
    earned: list[float] = []
    with episode(options=options, **kwargs) as played:
        for code in ("1", "1/0", "1/0"):
            played.run(code)
            earned.append(played.reward)
        assert played.info["reward_parts"] == {"failure": -7.0, "error": -3.0}
        for answer in (1, 2):
            played.env.reset(options=options)
            played.run(f"FINAL({answer})")
            earned.append(played.reward)
    assert earned == [-1.0, -4.0, -10.0, 5.0, -2.0]


def test_the_options_of_a_reset_are_for_one_episode():
    with episode(
        context="own", max_iterations=5, options={"context": "other", "max_iterations": 2}
    ) as played:
        assert played.observation["max_iterations"].tolist() == [2]
        observation, _ = played.env.reset()
        assert observation["max_iterations"].tolist() == [5]
        assert observation["context_preview"] == "own"


def test_a_step_that_loses_all_begins_with_its_names_again():
    with episode(options={"context": "kept"}, step_timeout=0.3) as played:
        assert played.run("import os\nx = 1\nos._exit(1)")["success"] == 0
        assert played.run("context, 'x' in globals()")["stdout"] == "('kept', False)\n"


HOSTILE = """
class Loud:
    def __repr__(self):
        return chr(1) * 10_000
for i in range(400):
    globals()[chr(2) * 100 + str(i)] = Loud()
print(chr(0) * 100_000, chr(0xD800))
"""


def test_observations_of_odd_programs_are_in_the_space():
    with episode(options={"context": "a\ud800b"}) as played:
        for code in (
            HOSTILE,
            "context",
            "print(context)",
            "raise KeyError('x' * 1_000_000)",
            "FINAL(context)",
        ):
            seen = played.run(code)
            assert played.env.observation_space.contains(seen)
        assert seen["context_preview"] == "a?b"
        assert played.answer == "a?b"


# What is told


def test_the_state_does_not_repeat_the_context():
    with episode(options={"context": "secret text", "task_prompt": "Do."}) as played:
        played.run("x = 1")
        state = ew.state_of(played.env)
        assert "secret text" not in repr(state)
        assert (state["context_length"], state["iteration"], state["final_answer"]) == (11, 1, None)
        assert state["namespace_keys"] == ["context", "answer", "x"]


def test_sub_calls_are_events():
    with episode(llm_query_fn=str.upper) as played:
        played.run("llm_query('a')")
        called, reported = (event for event in played.info["stream"].events if event.kind.startswith("tool"))
        assert called.data == {"name": "llm_query", "arguments": {"prompt": "a"}}
        assert reported.data == {"name": "llm_query", "result": "A"}


def test_copies_and_pickles_go_on():
    with episode(llm_query_fn=str.upper, options={"context": "c"}) as played:
        played.run("x = llm_query(context)")
        for other in (copy.deepcopy(played.env), pickle.loads(pickle.dumps(played.env))):
            assert other.step("x + llm_query('d')")[0]["stdout"] == "'CD'\n"
            assert other.step("FINAL(x)")[4]["final_answer"] == "C"
            other.close()
        assert played.run("x")["iteration"].tolist() == [2]


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"max_iterations": 0}, "max_iterations=0 is no number of steps from 1 to"),
        ({"compat": "print"}, "compat='print' is unknown; there are 'control' and 'stdout'"),
        ({"match": "near"}, "match='near' is unknown; there are 'exact' and 'fuzzy'"),
        ({"reward_on_error": "x"}, "reward_on_error='x' is no finite number"),
        ({"max_output_length": 5}, "max_output_length=5 is no number of characters from 100 to"),
        ({"context": object}, "context=<class 'object'> is neither a text nor other JSON"),
        ({"task_prompt": 3}, "task_prompt=3 is not a text"),
        ({"rlm": "gpt"}, "rlm='gpt' is neither a function of messages nor True or False"),
        ({"rlm_max_depth": 0}, "rlm_max_depth=0 is "),
        ({"rlm_max_iterations": "3"}, "rlm_max_iterations='3' is no number from 1 to"),
        ({"subcalls": "agents"}, "'agents' answer sub-calls in the game, pettingzoo.make"),
        ({"llm": {"base_url": "ftp://x"}}, "base_url= .* URL like"),
        ({"llm": {"base_url": "http://x", "attempts": 0}}, "attempts=0 .* from 1 to 100"),
        ({"llm": {"url": "x"}}, "llm= is no endpoint: .*`url`; .*base_url, model, api_key"),
        ({"llm_query_fn": 3}, "llm_query_fn=3 cannot be called; give a function"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(kwargs: dict[str, Any], sentence: str):
    with pytest.raises(InvalidArgument, match=f"^{REPL}: .*{sentence}"):
        gym.make(REPL, **kwargs)


def test_wrong_options_are_refused_and_the_next_reset_begins_an_episode():
    with episode() as played:
        played.run("x = 1")
        with pytest.raises(InvalidArgument, match=f"^{REPL}: max_iterations='5' is no number of steps"):
            played.env.reset(options={"max_iterations": "5"})
        with pytest.raises(ResetNeeded):
            played.run("x")
        played.env.reset(options={"max_iterations": 5})
        assert played.run("'x' in globals()")["stdout"] == "False\n"


@pytest.mark.parametrize("action", [None, 3, b"1", "\ud800", "x" * ((4 << 20) + 1)])
def test_an_invalid_action_is_refused_and_the_episode_goes_on(action: Any):
    with episode() as played:
        with pytest.raises(InvalidAction, match=REPL):
            played.env.step(action)
        assert played.run("2")["iteration"].tolist() == [1]


def test_fifty_megabytes_are_refused_at_once():
    with episode() as played:
        with pytest.raises(InvalidAction, match=REPL) as refusal:
            played.env.step("x" * 50_000_000)
        assert len(str(refusal.value)) < 500
        assert played.run("2")["iteration"].tolist() == [1]


@pytest.mark.parametrize(
    ("code", "said"), [("1\x00", "null bytes"), ("def f(:", "SyntaxError"), ("(" * 10_000, "SyntaxError")]
)
def test_a_syntax_error_is_observed(code: str, said: str):
    with episode() as played:
        assert said in played.run(code)["exception"]
        assert (played.ended, played.reward) == (False, -0.05)
        assert played.run("2")["stdout"] == "2\n"


def test_variables_that_cannot_be_shown_cost_no_later_step():
    with episode(step_timeout=0.5) as played:
        played.run("class Endless:\n    def __repr__(self):\n        while True: pass\na = Endless()")
        assert played.info["result"].error_type == "StepTimeout"
        for program in ("1 + 1", "class Leaving:\n    def __repr__(self): raise SystemExit\nb = Leaving()"):
            played.run(program)
            assert (played.ended, played.reward, played.info["result"].error) == (False, 0.0, "")
