"""Files and the words of an issue: what a path and a text share, what is a source file, what is masked."""

from __future__ import annotations

import time

import pytest

from envweave_gym.envs.swebench.file_mentions import (
    Leak,
    imported_paths,
    is_source,
    leak_of,
    masked,
    mentioned_paths,
    overlap,
    path_words,
    roots_of,
    words_of,
)

ROOTS = {"matplotlib": "lib/", "django": ""}
ANSWER = "lib/matplotlib/axes/_base.py"


def test_words_are_parts_of_names() -> None:
    assert words_of("SomeName some_other HTTPError2 a") == {"some", "name", "other", "http", "error"}
    assert path_words("django/db/models/query_utils.py") == {"django", "db", "models", "query", "utils"}
    assert overlap("django/db/query.py", words_of("A Query of the DB")) == 2


@pytest.mark.parametrize(
    ("issue", "leak"),
    [
        ("see lib/matplotlib/axes/_base.py", Leak.PATH),
        ('File "/usr/lib/python3.9/site-packages/matplotlib/axes/_base.py", line 1', Leak.PATH),
        ("from matplotlib.axes._base import _process", Leak.DOTTED),
        ("somewhere.matplotlib.axes._base", Leak.STEM),
        ("in _base.py there is", Leak.NAME),
        ("my_base.py", Leak.NONE),
        ("the class _base is", Leak.STEM),
        ("the class _baseline is", Leak.NONE),
        ("axes are wrong", Leak.NONE),
    ],
)
def test_the_first_way_that_holds_is_how_an_issue_names_a_file(issue: str, leak: Leak) -> None:
    assert leak_of(ANSWER, issue) is leak


def test_an_init_file_is_named_by_its_package_alone() -> None:
    assert leak_of("django/db/models/__init__.py", "in __init__.py of it") is Leak.NONE
    assert leak_of("django/db/models/__init__.py", "import django.db.models") is Leak.DOTTED


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("django/db/query.py", True),
        ("django/test/client.py", False),
        ("tests/thing.py", False),
        ("django/conftest.py", False),
        ("pkg/test_thing.py", False),
        ("pkg/thing_test.py", False),
        ("pkg/testing_thing.py", True),
        ("README.md", False),
        ("pkg/two\nlines.py", False),
        ("pkg/lone\udc80.py", False),
        ("p" * 300 + ".py", False),
    ],
)
def test_a_source_file_is_python_and_no_test(path: str, source: bool) -> None:
    assert is_source(path) is source


@pytest.mark.parametrize(
    ("issue", "hidden"),
    [
        ("see lib/matplotlib/axes/_base.py, line 3", "see <file>, line 3"),
        ("C:\\Python\\matplotlib\\axes\\_base.py broke", "C:<file> broke"),
        ("https://github.com/m/m/blob/main/lib/matplotlib/axes/_base.py#L3", "<file>#L3"),
        ("in `_base.py` and other.pyx", "in `<file>` and <file>"),
        ("matplotlib.axes._base.Axes fails", "<file>.Axes fails"),
        ("open lib/matplotlib/axes/_base and look", "open <file> and look"),
        ("matplotlib.pyplot and happy.python stay", "matplotlib.pyplot and happy.python stay"),
    ],
)
def test_names_of_files_are_masked(issue: str, hidden: str) -> None:
    assert masked(issue, [ANSWER]) == hidden


def test_masking_a_long_word_takes_no_time() -> None:
    started = time.perf_counter()
    masked("a/" * 500_000 + " " + "b" * 1_000_000, [ANSWER])
    assert time.perf_counter() - started < 10


def test_rows_tell_the_packages_and_the_files_that_texts_name() -> None:
    assert roots_of([ANSWER, "django/db/query.py", "setup.py"]) == ROOTS
    trace = 'File "/x/site-packages/matplotlib/figure.py" calls django/tests/a.py and other/b.py'
    assert mentioned_paths(trace, ROOTS) == ["lib/matplotlib/figure.py"]


def test_rows_tell_the_files_that_tests_import() -> None:
    diff = "+from matplotlib.axes import Axes\n import django.db.query\n-import os\n+from django import db\n"
    folders = frozenset({"lib/matplotlib/axes"})
    assert imported_paths(diff, ROOTS, folders) == ["lib/matplotlib/axes/__init__.py", "django/db/query.py"]
