"""Which file must change: the question, what an answer is worth, what is shown and what is not."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from swebench_rows import TOY

from envweave_gym.core.faults import InvalidAction, InvalidArgument
from envweave_gym.envs.swebench.localisation import SWEBenchLocEnv, accuracy_by_leak
from envweave_gym.envs.tasks.choice_config import REWARDS


def toy(**kwargs: Any) -> SWEBenchLocEnv:
    return SWEBenchLocEnv(**{"dataset": "synthetic", **kwargs})


def env_of(path: Path, *rows: dict[str, Any], **kwargs: Any) -> SWEBenchLocEnv:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return SWEBenchLocEnv(dataset=str(path), **kwargs)


def rows_with(**columns: Any) -> list[dict[str, Any]]:
    """The toy rows; the first has other columns."""
    first, *others = (msgspec.to_builtins(row) for row in TOY)
    return [first | columns, *others]


def test_a_question_shows_the_repository_the_issue_and_the_options() -> None:
    env = toy()
    prompt, info = env.reset(seed=3, options={"index": 1})
    task = TOY[1]
    assert prompt.startswith(f"Repository: {task.repo}\n\nIssue:\n{task.problem_statement.strip()}\n\n")
    assert prompt.endswith("Answer with one letter: A, B, C or D.")
    assert f"{'ABCD'[env.question.right]}. {task.gold_files[0]}\n" in prompt
    assert len(set(env.question.options)) == 4
    assert info == {"index": 1, "split": "test", "instance_id": task.instance_id, "leak": info["leak"]}


def test_hints_and_tests_are_never_shown(tmp_path: Path) -> None:
    rows = rows_with(hints_text="SECRET", FAIL_TO_PASS=["SECRET"], PASS_TO_PASS=["SECRET"])
    env = env_of(tmp_path / "rows.jsonl", *rows)
    for seed in range(20):
        prompt, _ = env.reset(seed=seed, options={"index": 0})
        assert "SECRET" not in prompt
        assert not any(test in prompt for test in TOY[0].test_files)


@pytest.mark.parametrize("reward", ["dense", "sparse"])
def test_an_option_is_worth_what_the_reward_says(reward: Any) -> None:
    right, wrong, _ = REWARDS[reward]
    env = toy(reward=reward)
    env.reset(seed=1)
    chosen = env.question.right
    _, paid, terminated, truncated, info = env.step(chosen)
    assert (paid, terminated, truncated) == (right, True, False) == (1.0, True, False)
    assert (info["correct"], info["chosen"]) == (True, chosen)
    env.reset(seed=1)
    _, paid, _, _, info = env.step((chosen + 1) % 4)
    assert (paid, info["correct"]) == (wrong, False)


def test_a_reply_without_a_letter_is_worth_nothing_and_ends_the_episode() -> None:
    env = toy(action="text")
    env.reset(seed=1)
    _, paid, terminated, _, info = env.step("I do not know.")
    assert (paid, terminated, info["correct"], info["chosen"]) == (0.0, True, False, -1)
    env.reset(seed=1)
    _, paid, _, _, info = env.step(f"It must be there.\nAnswer: {'ABCD'[env.question.right]}")
    assert (paid, info["correct"]) == (1.0, True)


def test_replies_become_actions_of_either_kind() -> None:
    env = toy()
    env.reset(seed=1)
    assert env.parse_action("Answer: C") == 2
    with pytest.raises(InvalidAction, match="A, B, C or D"):
        env.parse_action("no idea")
    assert toy(action="text").parse_action("no idea") == "no idea"


def test_where_there_are_too_few_files_there_are_fewer_options() -> None:
    env = toy(options=26)
    prompt, _ = env.reset(seed=1)
    there_are = len(env.question.options)
    assert 4 < there_are < 26
    assert f"{'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[there_are]}. " not in prompt
    _, paid, _, _, info = env.step(25)
    assert (paid, info["chosen"]) == (0.0, -1)


def test_the_seed_decides_the_question() -> None:
    one, other = toy(), toy()
    prompts = [one.reset(seed=seed)[0] for seed in range(30)]
    assert prompts == [other.reset(seed=seed)[0] for seed in range(30)]
    assert len(set(prompts)) > 20


def test_the_right_option_stands_anywhere_as_often() -> None:
    env = toy()
    for index in range(2):
        places: Counter[int] = Counter()
        for seed in range(800):
            env.reset(seed=seed, options={"index": index})
            places[env.question.right] += 1
        assert set(places) == {0, 1, 2, 3}
        assert min(places.values()) > 150


def test_wrong_options_vary_with_the_seed_and_are_never_right() -> None:
    env = toy()
    seen: set[str] = set()
    for seed in range(50):
        env.reset(seed=seed, options={"index": 0})
        assert env.question.options.count(TOY[0].gold_files[0]) == 1
        seen |= set(env.question.options)
    assert len(seen) > 4
    assert not any(path.startswith("tests/") for path in seen)


def test_a_chat_is_the_same_prompt_as_a_message() -> None:
    text, chat = toy(), toy(observation="chat")
    prompt, _ = text.reset(seed=5)
    messages, _ = chat.reset(seed=5)
    assert messages == [{"role": "user", "content": prompt}]
    assert chat.observation_space.contains(messages)


def test_a_long_issue_is_cut(tmp_path: Path) -> None:
    rows = rows_with(problem_statement="word " * 10_000)
    env = env_of(tmp_path / "rows.jsonl", *rows, max_issue=100)
    prompt, _ = env.reset(seed=0, options={"index": 0})
    assert env.issue == ("word " * 20) + "\n[…]"
    assert env.observation_space.contains(prompt)


NAMING = {
    "path": "It breaks in toolbox/text.py, line 3.",
    "dotted": "I call toolbox.text.shorten and it breaks.",
    "name": "It breaks in text.py.",
    "stem": "The text is too long.",
    "none": "It breaks.",
}


@pytest.mark.parametrize(("leak", "issue"), NAMING.items())
def test_info_says_how_the_issue_names_the_file(tmp_path: Path, leak: str, issue: str) -> None:
    env = env_of(tmp_path / "rows.jsonl", *rows_with(problem_statement=issue))
    _, info = env.reset(seed=0, options={"index": 0})
    assert info["leak"] == leak
    *_, info = env.step(0)
    assert info["leak"] == leak


@pytest.mark.parametrize("leak", ["path", "dotted", "name"])
def test_masked_issues_name_no_file(tmp_path: Path, leak: str) -> None:
    env = env_of(tmp_path / "rows.jsonl", *rows_with(problem_statement=NAMING[leak]), mask_paths=True)
    prompt, info = env.reset(seed=0, options={"index": 0})
    assert info["leak"] in ("stem", "none")
    issue = prompt.partition("Which of these files")[0]
    assert "<file>" in issue
    assert not any(name in issue for name in ("toolbox/text", "toolbox.text", "text.py"))


def test_accuracy_is_reported_for_each_leak() -> None:
    infos = [
        {"leak": "path", "correct": True},
        {"leak": "none", "correct": False},
        {"leak": "none", "correct": True},
        {"leak": "none"},
    ]
    assert accuracy_by_leak(infos) == {"path": (1.0, 1), "none": (0.5, 2), "all": (2 / 3, 3)}
    assert accuracy_by_leak([]) == {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_accuracy_is_reported_for_vectors_too(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([toy] * 3, autoreset_mode=mode)
    envs.reset(seed=[1, 2, 3])
    right = np.array([env.unwrapped.question.right for env in envs.envs])  # pyright: ignore
    *_, infos = envs.step((right + np.array([0, 1, 0])) % 4)
    assert accuracy_by_leak([infos, infos])["all"] == (2 / 3, 6)


def test_an_episode_goes_on_in_its_copies() -> None:
    env = toy()
    env.reset(seed=9)
    right = env.question.right
    for twin in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        assert twin.step(right)[1] == 1.0
        assert twin.reset(seed=4)[0] == toy().reset(seed=4)[0]


def test_the_state_says_where_wrong_options_come_from() -> None:
    env = toy()
    env.reset(seed=0)
    assert env.episode_state()["candidates"] == "rows"
    assert env.episode_state()["dataset"] == "synthetic"


def test_a_repository_that_nothing_is_known_of_is_refused_in_one_sentence(tmp_path: Path) -> None:
    env = env_of(tmp_path / "rows.jsonl", rows_with()[0])
    with pytest.raises(InvalidArgument, match=r"nothing is known of toy/toolbox .*; give candidates="):
        env.reset(seed=0)


def test_a_patch_that_changes_nothing_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="toy__toolbox-1: its patch changes no file"):
        env_of(tmp_path / "rows.jsonl", *rows_with(patch=""))


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"options": 1}, "options=1 .* give an int from 2 to 26"),
        ({"options": True}, "options=True"),
        ({"observation": "tokens"}, "observation='tokens' is unknown; there are 'text' and 'chat'"),
        ({"action": "letter"}, "action='letter' is unknown; there are 'index' and 'text'"),
        ({"reward": None}, "reward=None is unknown; there are 'dense' and 'sparse'"),
        ({"max_issue": 0}, "max_issue=0 is no length"),
        ({"mask_paths": "no"}, "mask_paths='no' is not True or False"),
        ({"split": "train"}, "split='train' is unknown"),
    ],
)
def test_wrong_arguments_are_one_sentence(kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        toy(**kwargs)


@pytest.mark.parametrize("index", [-1, 6, 1.5, "1"])
def test_an_index_out_of_range_is_one_sentence(index: Any) -> None:
    with pytest.raises(InvalidArgument, match="give an int from 0 to 5"):
        toy().reset(seed=0, options={"index": index})
