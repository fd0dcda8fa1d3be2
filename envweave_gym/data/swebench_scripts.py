"""Computes the evaluation scripts, image names and log parsers of SWE-bench Lite's rows.

Rows of the newer schema contain them; rows with the classic twelve columns do not. The texts computed here equal
the official ones for every row of Lite.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HEREDOC = "EOF_114329324912"
_DATA_FILES = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_CHANGED = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)

_PREPARE = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
"""
_LOCALE = """sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen
export LANG=en_US.UTF-8
export LANGUAGE=en_US:en
export LC_ALL=en_US.UTF-8
"""
_SCRIPT = """git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {base}
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install {install}
{checkout}
git apply -v - <<'{heredoc}'
{patch}
{heredoc}
: '>>>>> Start Test Output'
{test}
: '>>>>> End Test Output'
{checkout}
"""


@dataclass(frozen=True)
class _Project:
    """The commands that install and test one repository."""

    install: str = "-e ."
    """The arguments of ``pip install``."""
    test: str = "pytest -rA"
    """The command that runs tests; their names are appended."""
    parser: str = ""
    """The suffix of the log parser's name; empty if it is the name of the repository."""


_PROJECTS = {
    "astropy/astropy": _Project("-e .[test] --verbose"),
    "django/django": _Project(test="./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"),
    "marshmallow-code/marshmallow": _Project("-e '.[dev]'"),
    "matplotlib/matplotlib": _Project(),
    "mwaskom/seaborn": _Project("-e .[dev]", "pytest --no-header -rA"),
    "pallets/flask": _Project(),
    "psf/requests": _Project("."),
    "pvlib/pvlib-python": _Project("-e .[all]", parser="pvlib"),
    "pydata/xarray": _Project(),
    "pydicom/pydicom": _Project(),
    "pylint-dev/astroid": _Project(),
    "pylint-dev/pylint": _Project(),
    "pytest-dev/pytest": _Project(),
    "pyvista/pyvista": _Project(),
    "scikit-learn/scikit-learn": _Project("-v --no-use-pep517 --no-build-isolation -e .", parser="scikit"),
    "sphinx-doc/sphinx": _Project("-e .[test]", "tox --current-env -epy39 -v --"),
    "sqlfluff/sqlfluff": _Project(),
    "sympy/sympy": _Project(
        test="PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"
    ),
}


def changed_paths(diff: str) -> tuple[str, ...]:
    """Return the paths of the files that a git diff changes, as they are called after it, in the diff's order."""
    return tuple(_CHANGED.findall(diff))


def image_of(instance_id: str) -> str:
    """Return the name of an instance's official container image."""
    return f"swebench/sweb.eval.x86_64.{instance_id.lower().replace('__', '_1776_')}:latest"


def log_parser_of(repo: str) -> str:
    """Return the name of the official parser of the tests' output; ``""`` if the repository is not in Lite."""
    if repo not in _PROJECTS:
        return ""
    return f"parse_log_{_PROJECTS[repo].parser or repo.partition('/')[2]}"


def eval_script_of(repo: str, version: str, base_commit: str, test_patch: str) -> str:
    """Return the official evaluation script of an instance; ``""`` if the repository is not in Lite."""
    if repo not in _PROJECTS:
        return ""
    files = changed_paths(test_patch)
    old = _major(version)
    prepare = _PREPARE + (_LOCALE if repo == "django/django" and old < 4 else "")
    return prepare + _SCRIPT.format(
        base=base_commit,
        install=_PROJECTS[repo].install,
        checkout=" ".join(("git checkout", base_commit, *files)),
        heredoc=_HEREDOC,
        patch=test_patch,
        test=" ".join((_command(repo, old), *selected(repo, files))),
    )


def _major(version: str) -> int:
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _command(repo: str, major: int) -> str:
    if repo == "astropy/astropy" and major < 3:
        return "pytest -rA -vv -o console_output_style=classic --tb=no"
    return _PROJECTS[repo].test


def selected(repo: str, files: Sequence[str]) -> Sequence[str]:
    """Return the arguments of the test command: the test files without data files; for Django, their module names."""
    tests = [file for file in files if not file.endswith(_DATA_FILES)]
    if repo != "django/django":
        return tests
    return [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in tests]
