"""Instances of SWE-bench Lite: both schemas of rows, what classic rows lack, and rows that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from swebench_rows import TOY, real_rows

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.data.swebench_lite import Instance, instances
from envweave_gym.data.swebench_scripts import changed_paths, eval_script_of, image_of, log_parser_of

NEWER = ("image", "eval_script", "log_parser", "eval_type", "difficulty")
TESTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def columns(instance: Instance) -> dict[str, Any]:
    """A row of the newer schema."""
    return msgspec.to_builtins(instance)


def classic(instance: Instance) -> dict[str, Any]:
    """The same row as the classic twelve columns have it."""
    row = {name: value for name, value in columns(instance).items() if name not in NEWER}
    return row | {name: json.dumps(row[name]) for name in TESTS}


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def test_both_schemas_are_the_same_instances(tmp_path: Path) -> None:
    newer = instances(written(tmp_path / "newer.jsonl", *map(columns, TOY)))
    older = instances(written(tmp_path / "older.jsonl", *map(classic, TOY)))
    assert list(newer) == list(TOY)
    assert [row.fail_to_pass for row in older] == [row.fail_to_pass for row in TOY]
    assert [row.pass_to_pass for row in older] == [row.pass_to_pass for row in TOY]
    assert [row.image for row in older] == [row.image for row in TOY]
    assert all(row.gold_files == (row.patch.split()[2][2:],) for row in older)


def test_a_repository_beyond_lite_has_no_script(tmp_path: Path) -> None:
    row = instances(written(tmp_path / "rows.jsonl", classic(TOY[0])))[0]
    assert (row.eval_script, row.log_parser, row.eval_type) == ("", "", "pass_and_fail")


def test_scripts_install_and_test_as_the_project_does() -> None:
    django = eval_script_of("django/django", "3.0", "abc", "diff --git a/tests/a/b.py b/tests/a/b.py\n")
    assert "--parallel 1 a.b\n" in django
    assert "locale-gen" in django
    assert "locale-gen" not in eval_script_of("django/django", "4.0", "abc", "")
    data = "diff --git a/tests/x.json b/tests/x.json\ndiff --git a/tests/test_x.py b/tests/test_x.py\n"
    flask = eval_script_of("pallets/flask", "2.3", "abc", data)
    assert flask.count("git checkout abc tests/x.json tests/test_x.py\n") == 2
    assert "pytest -rA tests/test_x.py\n" in flask
    assert log_parser_of("scikit-learn/scikit-learn") == "parse_log_scikit"
    assert image_of("A__b-1") == "swebench/sweb.eval.x86_64.a_1776_b-1:latest"
    assert changed_paths(data) == ("tests/x.json", "tests/test_x.py")


@pytest.mark.parametrize("missing", ["instance_id", "patch", "problem_statement", "FAIL_TO_PASS"])
def test_a_missing_field_is_one_sentence_with_the_line(tmp_path: Path, missing: str) -> None:
    row = columns(TOY[1])
    del row[missing]
    path = written(tmp_path / "rows.jsonl", columns(TOY[0]), row)
    with pytest.raises(InvalidArgument, match=rf"^{path}, line 2: .*`{missing}`[^\n]*$"):
        instances(path)


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", columns(TOY[0]), json.dumps(columns(TOY[1]))[:300])
    with pytest.raises(InvalidArgument, match=rf"^{path}, line 2: [^\n]*truncated[^\n]*$"):
        instances(path)


@pytest.mark.parametrize("names", ["[oops", '{"a": 1}', "[1]"])
def test_names_of_tests_that_are_no_list_are_named(tmp_path: Path, names: str) -> None:
    path = written(tmp_path / "rows.jsonl", classic(TOY[0]) | {"FAIL_TO_PASS": names})
    with pytest.raises(
        InvalidArgument, match="line 1: FAIL_TO_PASS is neither a list of names nor one as JSON"
    ):
        instances(path)


def test_an_unknown_split_and_a_missing_file_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="split='train' is unknown; swebench_lite has 'test', 'dev'"):
        instances("synthetic", "train")
    with pytest.raises(NotAvailable, match="dataset='synthetic'"):
        instances(str(tmp_path / "none.jsonl"))


def test_all_real_rows_are_read_and_have_one_source_file_as_answer() -> None:
    rows = real_rows()
    assert len({row.instance_id for row in rows}) == len(rows) == 300
    assert sum(len(row.fail_to_pass) for row in rows) == 1039
    assert all(len(row.gold_files) == 1 and row.gold_files[0].endswith(".py") for row in rows)
    assert not any(set(row.gold_files) & set(row.test_files) for row in rows)


def test_missing_columns_of_classic_rows_equal_the_official_text() -> None:
    for row in real_rows():
        rebuilt = msgspec.convert(classic(row), Instance)
        assert (rebuilt.eval_script, rebuilt.image) == (row.eval_script, row.image), row.instance_id
        assert (rebuilt.log_parser, rebuilt.eval_type) == (row.log_parser, row.eval_type), row.instance_id
        assert (rebuilt.fail_to_pass, rebuilt.pass_to_pass) == (row.fail_to_pass, row.pass_to_pass)
