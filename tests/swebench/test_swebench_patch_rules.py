"""What the patch of a model may not touch."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from swebench_rows import NUMBERS, QUEUES, TEXT, TOY, new_file, patch_of, real_rows, rows_here

from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import MAX_CHARS, parse_diff
from envweave_gym.swebench.patch_rules import (
    path_violation,
    violations,
    violations_by_patch,
    violations_of_tree,
)


def said(text: str) -> str:
    return " | ".join(violations(text, parse_diff(text), TEXT))


def test_gold_patches_may_be_tried() -> None:
    assert [said(one.patch) for one in TOY] == [""] * len(TOY)


def test_none_of_the_real_gold_patches_is_refused() -> None:
    rows = real_rows()
    refused = {one.instance_id: violations(one.patch, parse_diff(one.patch), one) for one in rows}
    assert len(refused) == 300
    assert {name: why for name, why in refused.items() if why} == {}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("tests/test_text.py", "is of the tests"),
        ("conftest.py", "says how tests are run"),
        ("toolbox/conftest.py", "says how tests are run"),
        ("ConfTest.py", "says how tests are run"),
        ("pytest.ini", "says how tests are run"),
        ("tox.ini", "says how tests are run"),
        ("setup.cfg", "says how tests are run"),
        ("setup.py", "says how tests are run"),
        ("pyproject.toml", "says how tests are run"),
        ("sitecustomize.py", "says how tests are run"),
        ("usercustomize.py", "says how tests are run"),
        ("evil.pth", "says how tests are run"),
        ("tests/runtests.py", "says how tests are run"),
        ("extra-1.0.dist-info/entry_points.txt", "says what is installed"),
        ("src/toolbox.egg-info/entry_points.txt", "says what is installed"),
        ("unittest.py", "hides a module that tests are run with"),
        ("src/random/__init__.py", "hides a module that tests are run with"),
        ("_pytest/runner.py", "hides a module that tests are run with"),
        ("toolbox/testing.py", "is of the tests"),
        ("toolbox/testutils/checks.py", "is of the tests"),
        ("tests/data/x.json", "is of the tests"),
        ("toolbox/test/helpers.py", "is of the tests"),
        ("testing/x.py", "is of the tests"),
        ("toolbox/test_more.py", "is of the tests"),
        ("bin/test", "decides whether it is right"),
        ("../escape.py", "must not lead upwards"),
        ("toolbox/../../escape.py", "must not lead upwards"),
        (".git/config", "git keeps its own things there"),
        ("toolbox/.GIT/hooks/pre-commit", "git keeps its own things there"),
        (".gitattributes", "says how tests are run"),
        ("a//b.py", "no name of a file"),
    ],
)
def test_files_that_decide_the_grade_may_not_be_touched(path: str, why: str) -> None:
    for text in (patch_of(path, "a", "b"), new_file(path, "x = 1")):
        assert why in said(text)
    assert why in said(f"diff --git a/{path} b/toolbox/x.py\nrename from {path}\nrename to toolbox/x.py\n")
    assert why in said(f"diff --git a/toolbox/x.py b/{path}\ncopy from toolbox/x.py\ncopy to {path}\n")
    assert why in said(f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n")
    assert why in said(f"diff --git a/{path} b/{path}\nold mode 100644\nnew mode 100755\n")
    assert why in said(TEXT.patch + patch_of(path, "a", "b"))


def test_names_in_quotes_are_the_files_that_they_name() -> None:
    assert "is of the tests" in said(
        '--- "a/tests/test_\\164ext.py"\n+++ "b/tests/test_\\164ext.py"\n@@ -1 +1 @@\n-a\n+b\n'
    )
    assert "must not lead upwards" in said(
        '--- "a/\\056\\056/x"\n+++ "b/\\056\\056/x"\n@@ -1 +1 @@\n-a\n+b\n'
    )


def test_files_that_only_sound_like_tests_may_be_touched() -> None:
    for path in (
        "toolbox/contest.py",
        "toolbox/latest.py",
        "toolbox/testimony/x.py",
        "docs/setup.md",
        "lib/random.md",
    ):
        assert said(patch_of(path, "a", "b")) == ""


def test_modules_of_the_same_name_inside_a_package_may_be_touched() -> None:
    for path in ("toolbox/random.py", "src/toolbox/pytest/__init__.py"):
        assert said(patch_of(path, "a", "b")) == ""


def test_the_runner_may_be_touched_where_it_is_what_is_tested() -> None:
    instance = Instance(**{name: getattr(TEXT, name) for name in TEXT.__struct_fields__} | PYTEST)
    diff = parse_diff(patch_of("src/_pytest/runner.py", "a", "b"))
    assert violations(diff.text, diff, instance) == ()
    assert "hides a module" in said(diff.text)


PYTEST = {"repo": "pytest-dev/pytest"}


@pytest.mark.parametrize("mode", ["0120000", "120000 x", " 120000", "120000\t", "1200001"])
def test_modes_that_git_reads_and_does_not_write_are_refused(mode: str) -> None:
    assert "only plain files may be touched" in said(new_file("toolbox/link.py", "/etc/passwd", mode))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no diff in it"),
        ("I cannot do that.", "there is no diff in it"),
        (new_file("toolbox/link.py", "/etc/passwd", "120000"), "makes 'toolbox/link.py' a symbolic link"),
        (new_file("toolbox/sub", "Subproject commit abc", "160000"), "a submodule"),
        ("diff --git a/x.png b/x.png\nGIT binary patch\nliteral 0\n", "in binary form"),
        ("diff --git a/x.png b/x.png\nBinary files a/x.png and b/x.png differ\n", "in binary form"),
        ("--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n", "not absolute"),
        (patch_of("toolbox/x.py", "a", "b\0"), "characters that no source file has"),
        (patch_of("toolbox/x.py", "a", "\ud800"), "characters that no source file has"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "a file without a name"),
        ("x" * 10_000_000, f"it has 10000000 characters; at most {MAX_CHARS} are read"),
    ],
)
def test_a_patch_that_breaks_a_rule_is_refused_in_a_sentence(text: str, why: str) -> None:
    assert why in said(text)


def test_a_long_diff_is_not_even_read() -> None:
    long = new_file("toolbox/x.py", "x = 1\n" * 200_000)
    assert said(long).startswith("it has ")


def test_the_tests_of_an_instance_are_those_its_test_patch_adds_too() -> None:
    text = new_file("tests/test_ring_order.py", "")
    assert "is of the tests" in " ".join(violations(text, parse_diff(text), QUEUES))


def test_a_refusal_does_not_tell_which_tests_are_hidden() -> None:
    for one in [*TOY, *rows_here()]:
        for hidden in one.test_files:
            other = str(PurePosixPath(hidden).with_name("test_of_nobody.py"))
            first, second = path_violation(hidden, one), path_violation(other, one)
            assert first is not None
            assert second == first.replace(hidden, other)


def test_changed_files_count_whatever_the_headers_say() -> None:
    diff = parse_diff(TEXT.patch)
    assert violations_of_tree(("toolbox/text.py", "toolbox/text.py.orig"), diff, TEXT) == ()
    assert violations_of_tree(("toolbox/text.py", "toolbox/money.py"), diff, TEXT) == (
        "it touches 'toolbox/money.py', which its headers do not name",
    )
    (sentence,) = violations_of_tree(("conftest.py",), diff, TEXT)
    assert "says how tests are run" in sentence


@pytest.mark.parametrize(
    "part",
    [
        "Index: a/x.txt\n1c1\n< a\n---\n> b\n",
        "Index: a/x.txt\n1,2d\n",
        "Index: a/x.txt\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        "  --- a/x.txt\n  +++ b/x.txt\n  @@ -1 +1 @@\n  -a\n  +b\n",
    ],
)
def test_parts_that_only_patch_reads_are_refused_where_it_took_the_diff(part: str) -> None:
    (sentence,) = violations_by_patch(parse_diff(TEXT.patch + part + NUMBERS.patch))
    assert "a part that only the program patch reads" in sentence


def test_prose_between_the_parts_of_a_diff_is_no_part() -> None:
    prose = "Index: toolbox/numbers.py\n=====\nThen, in 2 places, 1 more line:\n\n"
    assert violations_by_patch(parse_diff(TEXT.patch + prose + NUMBERS.patch)) == ()
