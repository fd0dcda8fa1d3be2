"""The verdict that is read out of what the tests have printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from absent import needs_module
from swebench_rows import TEXT, TOY, row_of, rows_here

from envweave_gym.core.faults import InvalidArgument
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.evaluation_scripts import APPLY_COMMANDS, official_script
from envweave_gym.swebench.grading import (
    END,
    EXIT_CODE,
    START,
    check_instance,
    check_tests,
    grade,
    graded_to_pass,
)

SETUP = "+ git status\n+ git apply -v -\nChecking patch tests/test_text.py...\n"
ALL = [*TEXT.fail_to_pass, *TEXT.pass_to_pass]


@pytest.fixture(autouse=True)
def swebench() -> None:
    needs_module("swebench", "swebench")


def log(statuses: dict[str, str], code: int | None = None, setup: str = SETUP) -> str:
    lines = "".join(f"{status} {name}\n" for name, status in statuses.items())
    code = int(any(status != "PASSED" for status in statuses.values())) if code is None else code
    ended = f"+ : '{END}'\n+ echo '{EXIT_CODE}: {code}'\n{EXIT_CODE}: {code}\n"
    return f"{setup}+ : '{START}'\n{lines}+ SWEBENCH_TEST_EXIT_CODE={code}\n{ended}+ git checkout\n"


def statuses(failed: int = 0) -> dict[str, str]:
    return {name: "FAILED" if number < failed else "PASSED" for number, name in enumerate(ALL)}


def test_all_tests_passed() -> None:
    verdict = grade(TEXT, log(statuses()))
    assert (verdict.resolved, verdict.f2p, verdict.p2p, verdict.problem) == (True, 1.0, 1.0, "")
    assert verdict.tests_status["FAIL_TO_PASS"] == {"success": list(TEXT.fail_to_pass), "failure": []}


def test_a_test_that_passed_before_and_fails_now_resolves_nothing() -> None:
    broken = statuses() | {TEXT.pass_to_pass[0]: "FAILED"}
    verdict = grade(TEXT, log(broken))
    assert (verdict.resolved, verdict.f2p) == (False, 1.0)
    assert verdict.p2p == pytest.approx(2 / 3)


def test_tests_that_are_not_in_the_log_have_not_passed() -> None:
    verdict = grade(TEXT, log(dict.fromkeys(TEXT.pass_to_pass, "PASSED")))
    assert (verdict.resolved, verdict.f2p, verdict.p2p) == (False, 0.0, 1.0)


def test_only_the_failing_ones_count_where_that_is_asked_for() -> None:
    broken = log(statuses() | {TEXT.pass_to_pass[0]: "FAILED"})
    verdict = grade(TEXT, broken, tests="fail_to_pass")
    assert (verdict.resolved, verdict.p2p) == (True, 1.0)
    assert set(verdict.tests_status["PASS_TO_PASS"]["failure"]) == set()


def test_the_choice_of_tests_that_count_is_the_same_every_time() -> None:
    many = Instance(**{**_row(TEXT), "passing": tuple(f"t{number}" for number in range(100))})
    chosen = graded_to_pass(many, "all", 10)
    assert len(set(chosen)) == 10
    assert chosen == graded_to_pass(many, "all", 10)
    assert set(chosen) <= set(many.pass_to_pass)
    assert graded_to_pass(many, "all", None) == many.pass_to_pass
    assert list(graded_to_pass(many, "all", 0)) == []


def _row(one: Instance) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the tests were not started"),
        (SETUP, "the tests were not started"),
        (log(statuses()).partition(f"+ : '{END}'")[0], "the tests did not end"),
        (
            log(statuses(), setup=SETUP + "error: patch failed: tests/test_text.py:1\n"),
            "the test patch does not apply",
        ),
        (
            log(statuses() | {START: "x"}),
            "the tests have printed what only the script prints",
        ),
        (
            log({**statuses(), f"{EXIT_CODE}: 0": "x"}),
            "the tests have printed what only the script prints",
        ),
        (log(statuses()) + log(statuses()), "the tests have printed what only the script prints"),
        (log({}), "the tests have printed no results that count"),
        (log(statuses(), code=1), "the tests have printed no results that count"),
    ],
)
def test_a_log_that_is_none_of_a_whole_run_passes_nothing(text: str, problem: str) -> None:
    verdict = grade(TEXT, text)
    assert (verdict.resolved, verdict.f2p, verdict.p2p, verdict.problem) == (False, 0.0, 0.0, problem)


def test_errors_before_the_test_patch_is_applied_are_none_of_it() -> None:
    text = log(statuses(), setup="error: pathspec 'tests/x.py' did not match any file(s)\n" + SETUP)
    assert grade(TEXT, text).resolved


def test_faults_of_the_environment_are_named() -> None:
    assert grade(TEXT, "Could not resolve host: example.org").environment == "network_unreachable"
    assert grade(TEXT, log({}) + "ModuleNotFoundError").environment == ""


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("some", None), "tests='some' is unknown; there are 'all' and 'fail_to_pass'"),
        (("all", -1), "max_tests=-1 is no number of tests"),
        (("all", 1.5), "max_tests=1.5 is no number of tests"),
    ],
)
def test_an_invalid_selection_of_tests_is_refused(given: tuple[object, object], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        check_tests(*given)


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        ({"eval_script": "\n"}, "has no eval_script, so its patches cannot be tried"),
        ({"log_parser": "", "repo": "a/b"}, "of a/b has no log_parser"),
        ({"failing": (), "passing": ()}, "has no FAIL_TO_PASS"),
    ],
)
def test_an_instance_that_cannot_be_graded_is_refused(lacking: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        check_instance(Instance(**{**_row(TEXT), **lacking}))


@pytest.mark.parametrize("column", ["log_parser", "eval_type"])
def test_names_unknown_to_the_official_package_are_refused(column: str) -> None:
    with pytest.raises(InvalidArgument, match=f"has {column}='of nobody', which the official package"):
        grade(Instance(**{**_row(TEXT), column: "of nobody"}), log(statuses()))


def python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_grading_imports_what_it_needs_and_leaves_the_package_to_others() -> None:
    reported = python(
        "import sys, envweave_gym.swebench.grading as g; g.official_grading(); g.official_grading()\n"
        "print([m for m in ('modal', 'datasets', 'docker', 'swebench.harness') if m in sys.modules])\n"
        "import swebench.harness; print(swebench.harness.grading is g.official_grading())"
    )
    assert reported.split("\n")[:2] == ["[]", "True"]


def test_commands_and_scripts_are_the_official_ones() -> None:
    """Imports all of the official package, which takes seconds, in a process of its own."""
    instances = [*TOY, *rows_here()]
    rows = [row_of(one) for one in instances]
    program = (
        "import json, sys\n"
        "from swebench.harness.run_evaluation import GIT_APPLY_CMDS\n"
        "from swebench.harness.utils import make_test_spec\n"
        "rows = json.load(sys.stdin)\n"
        "print(json.dumps([GIT_APPLY_CMDS, [make_test_spec(row).eval_script for row in rows]]))"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(
        command, input=json.dumps(rows), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    commands, scripts = json.loads(run.stdout)
    assert commands == list(APPLY_COMMANDS)
    ours = [official_script(one) for one in instances]
    assert scripts == ours
