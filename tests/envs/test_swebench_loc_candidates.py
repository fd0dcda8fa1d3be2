"""Where wrong options come from: rows alone, files of candidates, checkouts; and what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from absent import needs_command
from swebench_rows import TOY
from toy_checkouts import checkout, git, plain_tree

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.data.toy_files import FILES
from envweave_gym.data.toy_repo import base_commit
from envweave_gym.envs.swebench.file_distractors import Candidates, distractors
from envweave_gym.envs.swebench.file_mentions import overlap, words_of
from envweave_gym.envs.swebench.localisation import SWEBenchLocEnv

SOURCES = {path for path in FILES if path.startswith("toolbox/")}
ANSWERS = {row.gold_files[0] for row in TOY}


def toy(candidates: Any = None, **kwargs: Any) -> SWEBenchLocEnv:
    return SWEBenchLocEnv(**{"dataset": "synthetic", "candidates": candidates, **kwargs})


def options_of(env: SWEBenchLocEnv, seeds: int = 30) -> set[str]:
    """Every option that some seed shows."""
    shown: set[str] = set()
    for seed in range(seeds):
        env.reset(seed=seed)
        shown |= set(env.question.options)
    return shown


def candidate_rows(**changed: Any) -> list[dict[str, Any]]:
    """Candidates of the toy rows; the first has other fields."""
    rows = [
        {
            "instance_id": row.instance_id,
            "answer": row.gold_files[0],
            "popular": sorted(ANSWERS - {row.gold_files[0]})[:2],
            "lexical": ["toolbox/only_in_the_file.py"],
        }
        for row in TOY
    ]
    return [rows[0] | changed, *rows[1:]]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_rows_alone_know_answers_and_what_issues_and_tests_name() -> None:
    shown = options_of(toy("rows"))
    assert shown >= ANSWERS
    assert not any(path.startswith("tests/") for path in shown)


def test_a_file_of_candidates_says_what_wrong_options_there_are(tmp_path: Path) -> None:
    env = toy(str(written(tmp_path / "candidates.jsonl", candidate_rows())))
    shown = options_of(env)
    assert "toolbox/only_in_the_file.py" in shown
    assert env.episode_state()["candidates"] == "file"


def test_the_file_beside_the_data_is_the_default_of_the_test_split(tmp_path: Path) -> None:
    data = written(tmp_path / "swebench_lite_test.jsonl", [msgspec.to_builtins(row) for row in TOY])
    assert SWEBenchLocEnv(dataset=str(data)).episode_state()["candidates"] == "rows"
    written(tmp_path / "swebench_lite_mcq.jsonl", candidate_rows())
    for dataset in (data, tmp_path):
        assert SWEBenchLocEnv(dataset=str(dataset)).episode_state()["candidates"] == "file"
    assert toy().episode_state()["candidates"] == "rows"


def test_a_checkout_shows_what_is_in_its_tree(tmp_path: Path) -> None:
    needs_command("git")
    env = toy(str(checkout(tmp_path / "anything")))
    shown = options_of(env, 100)
    assert ANSWERS < shown <= SOURCES
    assert env.episode_state()["candidates"] == "tree"


def test_the_tree_is_that_of_the_base_commit_whatever_is_checked_out(tmp_path: Path) -> None:
    needs_command("git")
    folder = checkout(tmp_path / "toolbox")
    assert git(folder, "rev-parse", "HEAD").strip() == base_commit()
    (folder / "toolbox" / "later.py").write_text("")
    git(folder, "rm", "--quiet", "toolbox/text.py")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=later")
    assert options_of(toy(str(folder)), 100) <= SOURCES


@pytest.mark.parametrize("name", ["toolbox", "toy__toolbox", "toolbox.git", "toy__toolbox.git"])
def test_checkouts_are_found_in_a_folder_by_their_names(tmp_path: Path, name: str) -> None:
    needs_command("git")
    source = checkout(tmp_path / "elsewhere" / "source")
    (tmp_path / "all").mkdir()
    git(
        tmp_path,
        "clone",
        "--quiet",
        *(["--bare"] if name.endswith(".git") else []),
        str(source),
        f"all/{name}",
    )
    assert options_of(toy([str(tmp_path / "elsewhere"), str(tmp_path / "all")])) <= SOURCES


def test_every_instance_may_have_a_checkout_of_its_own(tmp_path: Path) -> None:
    for row in TOY:
        plain_tree(tmp_path / row.instance_id)
    (tmp_path / TOY[0].instance_id / "toolbox" / "own.py").write_text("")
    env = toy(str(tmp_path), options=12)
    env.reset(seed=0, options={"index": 0})
    assert "toolbox/own.py" in env.question.options
    env.reset(seed=0, options={"index": 1})
    assert "toolbox/own.py" not in env.question.options


def test_a_folder_without_git_is_read_as_it_is(tmp_path: Path) -> None:
    assert options_of(toy(str(plain_tree(tmp_path))), 100) <= SOURCES


def test_a_place_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        NotAvailable,
        match=r"^envweave/SWEBenchLiteLocMCQ-v0: candidates: there is no '.*none'; give 'rows', [^\n]*$",
    ):
        toy(str(tmp_path / "none"))


def test_a_folder_that_is_no_checkout_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(
        NotAvailable,
        match=r"^envweave/SWEBenchLiteLocMCQ-v0: candidates: .* has no checkout of toy/toolbox; clone it there as toy",
    ):
        toy(str(tmp_path))


def test_a_repository_without_the_commit_is_one_sentence(tmp_path: Path) -> None:
    needs_command("git")
    folder = checkout(tmp_path / "toolbox")
    git(folder, "commit", "--quiet", "--amend", "--message=other")
    git(folder, "reflog", "expire", "--expire=now", "--all")
    git(folder, "gc", "--quiet", "--prune=now")
    with pytest.raises(NotAvailable, match=rf"has no commit {base_commit()}, which toy__toolbox-1 is about"):
        toy(str(folder))


def test_a_broken_repository_is_one_sentence(tmp_path: Path) -> None:
    needs_command("git")
    folder = checkout(tmp_path / "toolbox")
    (folder / ".git" / "HEAD").write_text("junk")
    with pytest.raises(NotAvailable, match=r"is no repository that git can read: [^\n]+$"):
        toy(str(folder))


def test_a_tree_of_another_project_is_one_sentence(tmp_path: Path) -> None:
    for row in TOY:
        plain_tree(tmp_path / row.instance_id)
    shutil.rmtree(tmp_path / TOY[0].instance_id / "toolbox")
    with pytest.raises(NotAvailable, match="has no checkout of toy/toolbox"):
        toy(str(tmp_path))


def test_candidates_of_another_data_set_are_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "other.jsonl", candidate_rows(answer="toolbox/other.py"))
    with pytest.raises(InvalidArgument, match=r"has the answer 'toolbox/other.py' for toy__toolbox-1, whose"):
        toy(str(path))
    path = written(tmp_path / "fewer.jsonl", candidate_rows()[1:])
    with pytest.raises(InvalidArgument, match=r"has nothing for toy__toolbox-1, whose patch changes"):
        toy(str(path))


def test_a_truncated_line_of_candidates_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "cut.jsonl", candidate_rows())
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InvalidArgument, match=rf"{path}, line {len(TOY)}: [^\n]*$"):
        toy(str(path))


def test_a_candidate_that_no_line_of_a_prompt_holds_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", candidate_rows(popular=["p" * 301]))
    with pytest.raises(InvalidArgument, match=rf"{path}, line 1: [^\n]*length <= 300[^\n]*$"):
        toy(str(path))


@pytest.mark.parametrize("candidates", [7, [], [7], {"a": 1}])
def test_an_invalid_address_is_one_sentence(candidates: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"candidates=.*'rows'"):
        toy(candidates)


CROWD = Candidates(
    instance_id="x",
    answer="p/answer.py",
    popular=tuple(f"p/often_{n}.py" for n in range(6)),
    near=("p/near.py", "p/answer.py"),
    lexical=tuple(f"q/alike_{n}.py" for n in range(6)),
    mentioned=("r/named.py",),
)


def test_most_wrong_options_are_answers_of_other_issues_and_one_is_not() -> None:
    for key in range(200):
        wrong = distractors(CROWD, "an issue", 3, key)
        assert len(set(wrong)) == 3
        assert CROWD.answer not in wrong
        assert sum(path in CROWD.popular for path in wrong) in (1, 2)


def test_two_options_are_the_answer_and_a_popular_file() -> None:
    assert {distractors(CROWD, "an issue", 1, key)[0] for key in range(50)} <= set(CROWD.popular)


def test_the_answer_looks_the_likeliest_as_often_as_the_least_likely() -> None:
    issue, words = "alpha beta", words_of("alpha beta")
    mixed = Candidates(
        instance_id="x",
        answer="p/alpha.py",
        popular=("p/alpha_beta_1.py", "p/alpha_beta_2.py", "p/gamma_1.py", "p/gamma_2.py"),
        lexical=("q/beta_alpha_1.py", "q/beta_alpha_2.py"),
        near=("p/delta_1.py", "p/delta_2.py"),
    )
    above = Counter(
        sum(overlap(path, words) > 1 for path in distractors(mixed, issue, 3, key)) for key in range(400)
    )
    assert set(above) == {0, 1, 2, 3}
    assert min(above.values()) > 60


def test_candidates_run_out_before_anything_is_drawn_twice() -> None:
    few = Candidates(instance_id="x", answer="a.py", popular=("b.py", "b.py"), near=("c.py", "b.py", "a.py"))
    assert sorted(distractors(few, "issue", 5, 1)) == ["b.py", "c.py"]
    assert distractors(Candidates(instance_id="x", answer="a.py"), "issue", 3, 1) == ()
