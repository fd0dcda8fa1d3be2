"""GSM8K as free text: what is asked, what a reply is worth, hints, and what a mistake is told."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gsm8k_rows import SYNTHETIC, all_real_rows

import envweave_gym
from envweave_gym.data.gsm8k import Problem
from envweave_gym.envs.gsm8k.gsm8k import MAX_REPLY, GSM8KEnv
from envweave_gym.envs.gsm8k.gsm8k_config import SYSTEM_PROMPT
from envweave_gym.envs.gsm8k.number_answers import numbers_in, read_number
from envweave_gym.episode.message import messages_of
from envweave_gym.episode.stream import EventKind, stream_of

ID = "envweave/GSM8K-v0"


def made(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(ID, **{"dataset": "synthetic", **kwargs})


def written(path: Path, *rows: Problem) -> str:
    path.write_text(
        "".join(json.dumps({"question": row.question, "answer": row.answer}) + "\n" for row in rows)
    )
    return str(path)


@pytest.fixture
def clips(tmp_path: Path) -> str:
    """A data set of one problem."""
    solution = "In May 48/2 = <<48/2=24>>24.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"
    return written(
        tmp_path / "clips.jsonl", Problem("48 clips in April, half as many in May. In all?", solution)
    )


# What is asked


def test_the_prompt_is_the_observation_and_travels_as_messages() -> None:
    text, info = made().reset(seed=5)
    chat, also = made(observation="chat").reset(seed=5)
    question = SYNTHETIC[info["index"]].question
    assert text == f"{SYSTEM_PROMPT}\n\n{question}"
    assert chat == messages_of(info) == messages_of(also)
    assert chat == [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]


def test_the_system_prompt_may_be_another_or_none() -> None:
    assert made(system_prompt="Be brief.").reset(seed=5)[0].startswith("Be brief.\n\n")
    env = made(system_prompt="", observation="chat")
    assert [one["role"] for one in env.reset(seed=5)[0]] == ["user"]


def test_the_seed_an_index_or_a_group_decides_the_problem() -> None:
    env, other = made(), made()
    shown, info = env.reset(seed=3)
    assert other.reset(seed=3) == (shown, info)
    assert other.reset(seed=4)[0] != shown
    assert other.reset(seed=4, options={"group": 3})[0] == shown
    assert other.reset(options={"index": info["index"]})[0] == shown
    for index in (0, 4095):
        _, info = env.reset(options={"index": index})
        assert info["index"] == index
        assert messages_of(info)[-1]["content"] == SYNTHETIC[index].question


def test_the_splits_are_the_data_sets() -> None:
    env = made(split="test")
    _, info = env.reset(options={"index": 0})
    assert (info["split"], messages_of(info)[-1]["content"]) == ("test", SYNTHETIC[4096].question)
    assert envweave_gym.state_of(env)["tasks"] == 1024


def test_an_epoch_meets_every_problem_once() -> None:
    env = made(split="test")
    met = [env.reset(options=options)[1]["index"] for options in envweave_gym.epoch(env, seed=1)]
    assert sorted(met) == list(range(1024))
    assert met != sorted(met)


# What a reply is worth


@pytest.mark.parametrize(
    ("reply", "reward", "correct", "formatted", "answer"),
    [
        ("#### 72", 1.25, True, True, "72"),
        ("48/2 = 24, so \\boxed{72}.", 1.25, True, True, "72"),
        ("The answer is 72.", 1.0, True, False, "72"),
        ("#### 7.20e1", 1.25, True, True, "72"),
        ("#### 73", 0.15, False, True, "73"),
        ("72 or 73", -0.1, False, False, "73"),
        ("#### 72 or 73", -0.1, False, False, ""),
        ("I do not know.", -0.1, False, False, ""),
        ("", -0.1, False, False, ""),
        ("#### 1/3", 0.15, False, True, "1/3"),
        ("<think>#### 72", -0.1, False, False, ""),
        ("#### 72\n<think>or #### 73?</think>", 1.25, True, True, "72"),
    ],
)
def test_rewards_are_for_the_number_and_for_the_form(
    clips: str, reply: str, reward: float, correct: bool, formatted: bool, answer: str
) -> None:
    env = made(dataset=clips, reward_on_wrong=-0.1, reward_on_format=0.25)
    env.reset(seed=0)
    _, earned, terminated, truncated, info = env.step(reply)
    assert earned == pytest.approx(reward)
    assert (terminated, truncated) == (True, False)
    assert (info["correct"], info["formatted"], info["answer"]) == (correct, formatted, answer)
    (reported,) = stream_of(info).of_kind(EventKind.METRICS)
    assert reported.data == {"correct": int(correct), "formatted": int(formatted), "replies": 1}


def test_by_default_the_right_number_is_one_and_nothing_else_counts(clips: str) -> None:
    env = made(dataset=clips)
    for reply, reward in (("72", 1.0), ("#### 72", 1.0), ("#### 24", 0.0), ("", 0.0)):
        env.reset(seed=0)
        assert env.step(reply)[1] == reward


def test_infos_hold_the_same_kinds_and_the_result_only_at_the_end(clips: str) -> None:
    env = made(dataset=clips, hint_turns=1)
    infos = [env.reset(seed=0)[1], env.step("5")[4], env.step("6")[4]]
    kinds = [{name: type(value) for name, value in info.items()} for info in infos]
    assert kinds[0] == kinds[1] == kinds[2]
    assert [info["expected"] for info in infos] == ["", "", "72"]
    assert [info["answer"] for info in infos] == ["", "5", "6"]
    assert not any("72" in str(stream_of(info)) for info in infos)


def test_all_generated_results_and_solutions_are_right() -> None:
    expect_all_right(made(), SYNTHETIC[:4096:7], 7)


@pytest.mark.parametrize("split", ["train", "test"])
def test_all_real_results_and_solutions_are_right(split: str) -> None:
    rows = all_real_rows()
    rows = rows[:7473] if split == "train" else rows[7473:]
    expect_all_right(made(dataset="openai/gsm8k", split=split), rows, 1)


def expect_all_right(env: gym.Env[Any, Any], rows: list[Problem], stride: int) -> None:
    for place, row in enumerate(rows):
        for reply in (row.final, row.answer, f"So it is \\boxed{{{row.final}}}."):
            env.reset(options={"index": place * stride})
            _, reward, *_ = env.step(reply)
            assert reward == 1.0, (place, reply)


# Hints


def test_a_wrong_reply_gets_one_hint_and_a_second_try(clips: str) -> None:
    env = made(dataset=clips, hint_turns=1, observation="chat", reward_on_format=0.1)
    asked, _ = env.reset(seed=0)
    shown, reward, terminated, truncated, info = env.step("#### 24")
    assert (reward, terminated, truncated) == (0.0, False, False)
    hint = {
        "role": "user",
        "content": "That is not right. This is a first step: In May 48/2 = 24. "
        "Go on from there, and answer again.",
    }
    assert shown == [*asked, {"role": "assistant", "content": "#### 24"}, hint]
    assert messages_of(info) == [hint]
    assert envweave_gym.state_of(env)["replies"] == 1
    again, reward, terminated, _, info = env.step("#### 72")
    assert (again, reward, terminated) == (shown, 0.6, True)
    assert stream_of(info).of_kind(EventKind.METRICS)[0].data["replies"] == 2


def test_a_right_reply_needs_no_hint_and_a_second_wrong_one_gets_none(clips: str) -> None:
    env = made(dataset=clips, hint_turns=1, reward_on_wrong=-1, reward_on_hinted=0.25)
    env.reset(seed=0)
    assert env.step("72")[1:3] == (1.0, True)
    env.reset(seed=0)
    assert env.step("73")[1:3] == (0.0, False)
    assert env.step("no")[1:3] == (-1.0, True)
    env.reset(seed=0)
    shown, *_ = env.step("no")
    assert shown.endswith(
        "I can read no answer there. This is a first step: In May 48/2 = 24. Go on from there, "
        "and answer again."
    )
    assert env.step("72")[1] == 0.25


def expect_hints_to_tell_no_result(rows: list[Problem]) -> None:
    env = GSM8KEnv("synthetic", hint_turns=1)
    hinted = 0
    for row in rows:
        env._problem, env._expected = row, read_number(row.final)  # pyright: ignore[reportAttributeAccessIssue]
        hint = env._hint(None)
        assert env._expected not in numbers_in(hint)
        hinted += "first step" in hint
    assert hinted > 0.85 * len(rows)


def test_no_hint_tells_a_result() -> None:
    expect_hints_to_tell_no_result(SYNTHETIC)


def test_no_hint_about_a_real_problem_tells_its_result() -> None:
    expect_hints_to_tell_no_result(all_real_rows())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_in_mid_episode_plays_on(clips: str, duplicate: Any) -> None:
    env = made(dataset=clips, hint_turns=1, observation="chat")
    env.reset(seed=0)
    shown, *_ = env.step("24")
    shown.clear()
    twin = duplicate(env)
    for one in (twin, env):
        observation, reward, terminated, _, _ = one.step("#### 72")
        assert (len(observation), reward, terminated) == (4, 0.5, True)


# What else it says


def test_a_reply_is_its_own_action_up_to_a_length() -> None:
    env = made()
    env.reset(seed=0)
    assert envweave_gym.parse_action(env, "#### 72") == "#### 72"
    env.step("x" * MAX_REPLY)
    env.reset(seed=0)
    with pytest.raises(envweave_gym.InvalidAction, match=ID):
        env.step("x" * (MAX_REPLY + 1))
    with pytest.raises(envweave_gym.InvalidAction, match=ID):
        env.step(72)


def test_the_rendering_is_the_prompt_and_the_state_counts_replies() -> None:
    env = made(render_mode="ansi", hint_turns=1)
    shown, info = env.reset(seed=1)
    assert env.render() == shown
    state = {"episode": 0, "step_count": 0, "tasks": 4096, "index": info["index"], "split": "train"}
    assert envweave_gym.state_of(env) == state | {"dataset": "synthetic", "replies": 0, "max_replies": 2}


def test_rows_of_a_vector_ask_for_themselves() -> None:
    envs = gym.make_vec(ID, num_envs=3, dataset="synthetic", observation="chat")
    shown, infos = envs.reset(seed=[4, 5, 6])
    assert len({str(one) for one in shown}) == 3
    results = [SYNTHETIC[index].final for index in infos["index"].tolist()]
    _, rewards, terminated, _, _ = envs.step([f"#### {final}" for final in results])
    assert rewards.tolist() == [1.0, 1.0, 1.0]
    assert terminated.all()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"observation": "tokens"}, "there are 'text' and 'chat'"),
        ({"hint_turns": 2}, "hint_turns=2 is neither 0 nor 1"),
        ({"hint_turns": True}, "hint_turns=True is neither 0 nor 1"),
        ({"system_prompt": None}, "system_prompt=None is no text"),
        ({"system_prompt": "\ud800"}, "is no text"),
        ({"system_prompt": "x" * 70_000}, "is no text of at most 65536 characters"),
        ({"reward_on_format": "much"}, "reward_on_format='much' is no finite number"),
        ({"reward_on_correct": float("nan")}, "reward_on_correct=nan is no finite number"),
        ({"split": "dev"}, "split='dev' is unknown; gsm8k has 'train', 'test'"),
        ({"reward_format": 1}, "did you mean 'reward_on_format'"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(envweave_gym.InvalidArgument) as refused:
        made(**kwargs)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "options", [{"index": 4096}, {"index": -1}, {"index": "0"}, {"group": -1}, {"row": 1}]
)
def test_wrong_options_are_refused_and_the_episode_goes_on(options: dict[str, Any]) -> None:
    env = made(hint_turns=1)
    env.reset(seed=0)
    with pytest.raises(envweave_gym.InvalidArgument, match=ID):
        env.reset(options=options)


def test_a_result_that_is_no_number_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    env = made(dataset=written(tmp_path / "rows.jsonl", Problem("Who?", "#### Natalia")))
    with pytest.raises(
        envweave_gym.InvalidArgument, match=r"problem 0, 'Natalia', is no number; give a data set"
    ):
        env.reset(seed=0)


# What it costs

HEAVY = "datasets", "pyarrow", "pandas", "requests", "flask", "torch", "envweave_gym.sandbox"


def test_its_import_and_generated_problems_load_nothing_heavy() -> None:
    program = f"""
import sys, gymnasium, pettingzoo
before = set(sys.modules)
from envweave_gym.envs.gsm8k import gsm8k, multiple_choice
assert "envweave_gym.data.word_problems.generated_problems" not in sys.modules
for name in ("GSM8KEnv", "GSM8KMCQEnv"):
    module = {{"GSM8KEnv": gsm8k, "GSM8KMCQEnv": multiple_choice}}[name]
    getattr(module, name)("synthetic").reset(seed=0)
print(sorted(set({HEAVY}) & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


MEMORY = """
import gc, sys
import gymnasium, psutil
import envweave_gym

def play(env):
    env.reset(seed=1)
    env.step("#### 72")
    return env

def used():
    gc.collect()
    return psutil.Process().memory_full_info().uss

kept = [play(gymnasium.make(sys.argv[1], dataset=sys.argv[2]))]
one = used()
kept += [play(gymnasium.make(sys.argv[1], dataset=sys.argv[2])) for _ in range(255)]
print(used() / one)
"""


@pytest.mark.parametrize("env_id", [ID, "envweave/GSM8KMCQ-v0"])
def test_256_environments_need_little_more_memory_than_one(tmp_path: Path, env_id: str) -> None:
    path = written(tmp_path / "rows.jsonl", *SYNTHETIC)
    program = MEMORY if env_id == ID else MEMORY.replace('"#### 72"', "1")
    command = [sys.executable, "-c", program, env_id, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.2
