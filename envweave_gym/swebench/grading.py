"""Grades the log of a test run with the functions of the official SWE-bench package.

All tests of the official command are always run, because the log parsers miss some if only a part is run.
``tests`` and ``max_tests`` only narrow which of them are graded.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from envweave_gym.core.arguments import check_int
from envweave_gym.core.config import one_of
from envweave_gym.core.faults import InvalidArgument, nearest, need, shown
from envweave_gym.core.seeding import mix
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.evaluation_scripts import official_script

Tests = Literal["all", "fail_to_pass"]
TESTS = ("all", "fail_to_pass")

START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
_COMPLAINT = re.compile(r"^(?:error|fatal): ", re.MULTILINE)
_APPLY_TESTS = "+ git apply -v -"
_FULL = "RESOLVED_FULL"


@dataclass(frozen=True)
class Verdict:
    """The graded results of one test run, or the reason why it has none."""

    resolved: bool = False
    f2p: float = 0.0
    """The share of the FAIL_TO_PASS tests that pass."""
    p2p: float = 0.0
    """The share of the PASS_TO_PASS tests that pass."""
    tests_status: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    """The names of both kinds of tests, by whether they passed; empty without results."""
    problem: str = ""
    """Why there are no results, as a sentence; empty if there are."""
    environment: str = ""
    """The fault of the machine that a log without results shows, such as a full disk; else empty."""


def check_tests(tests: Any, max_tests: Any) -> None:
    """Raise ``InvalidArgument`` unless ``tests`` is one of :data:`TESTS`, and ``max_tests`` an int >= 0 or None."""
    one_of("tests", tests, TESTS)
    check_int("max_tests", max_tests, "no number of tests", 0, or_none=True)


def check_instance(instance: Instance) -> None:
    """Raise ``InvalidArgument`` for an instance without a script, log parser or FAIL_TO_PASS tests.

    Without them all patches would get the same grade.
    """
    needed = {
        "eval_script": instance.eval_script.strip(),
        "log_parser": instance.log_parser,
        "FAIL_TO_PASS": instance.fail_to_pass,
    }
    if lacking := [name for name, value in needed.items() if not value]:
        raise InvalidArgument(
            f"{instance.instance_id} of {instance.repo} has no {' and no '.join(lacking)}, so its patches "
            "cannot be tried; give rows that have them, as those of SWE-bench Lite do"
        )


def grade(instance: Instance, log: str, *, tests: Tests = "all", max_tests: int | None = None) -> Verdict:
    """Parse the log of the official evaluation script and compare its tests with those expected to pass.

    At most ``max_tests`` PASS_TO_PASS tests are graded, the same ones for all patches of an instance, and none
    with ``tests="fail_to_pass"``. A log that is not of one whole run gives a verdict with a ``problem``.
    """
    if problem := _problem(log):
        return Verdict(problem=problem, environment=_environment(log))
    official = _official_for(instance)
    statuses, found = _statuses(instance, log)
    if not found:
        return Verdict(problem="the tests have printed no results that count", environment=_environment(log))
    graded = {
        "FAIL_TO_PASS": list(instance.fail_to_pass),
        "PASS_TO_PASS": list(graded_to_pass(instance, tests, max_tests)),
    }
    kind = official.EvalType(instance.eval_type)
    report = official.get_eval_tests_report(statuses, graded, eval_type=kind)
    return Verdict(
        resolved=official.get_resolution_status(report) == _FULL,
        f2p=float(official.compute_fail_to_pass(report)),
        p2p=float(official.compute_pass_to_pass(report)),
        tests_status={name: report[name] for name in graded},
    )


def graded_to_pass(instance: Instance, tests: Tests, max_tests: int | None) -> Sequence[str]:
    """Return the PASS_TO_PASS tests to grade: all, none, or ``max_tests`` drawn with the instance as seed."""
    if tests == "fail_to_pass":
        return ()
    names = instance.pass_to_pass
    if max_tests is None or len(names) <= max_tests:
        return names
    key = int.from_bytes(instance.instance_id.encode()[-8:], "big")
    drawn = sorted(range(len(names)), key=lambda number: mix(key, number))
    return [names[number] for number in sorted(drawn[:max_tests])]


def _problem(log: str) -> str:
    """Return the reason why a log is not of one whole run of the official script; empty if it is.

    A patch runs inside the tests and can print the script's markers, so a marker out of place voids the log.
    """
    before, started, after = log.partition(START)
    inside, ended, rest = after.partition(END)
    if not started:
        return "the tests were not started"
    if _COMPLAINT.search(before.rpartition(_APPLY_TESTS)[2]):
        return "the test patch does not apply"
    if not ended:
        return "the tests did not end"
    if START in inside or START in rest or END in rest or EXIT_CODE in inside:
        return "the tests have printed what only the script prints"
    return ""


def _official_for(instance: Instance) -> Any:
    """Return the official grading module; raise ``InvalidArgument`` if it cannot grade this instance."""
    official = official_grading()
    for name, value, known in (
        ("log_parser", instance.log_parser, official.PARSER_REGISTRY),
        ("eval_type", instance.eval_type, [kind.value for kind in official.EvalType]),
    ):
        if value not in known:
            raise InvalidArgument(
                f"{instance.instance_id} has {name}={shown(value)}, which the official package does not know"
                f"{nearest(value, known)}"
            )
    return official


def _statuses(instance: Instance, log: str) -> tuple[dict[str, str], bool]:
    """Parse a log with the official function; return the status of each test, and whether the log shows a test run."""
    official = official_grading()
    with tempfile.TemporaryDirectory(prefix="envweave-log-") as folder:
        path = Path(folder) / "test_output.txt"
        path.write_text(log, errors="replace")
        return official.get_logs_eval(_spec(instance), str(path))


def _spec(instance: Instance) -> Any:
    types = need("swebench.types", "swebench", "grading a patch")
    return types.TestSpec(
        instance_id=instance.instance_id,
        image=instance.image,
        eval_script_list=official_script(instance).split("\n"),
        repo=instance.repo,
        version=instance.version,
        FAIL_TO_PASS=list(instance.fail_to_pass),
        PASS_TO_PASS=list(instance.pass_to_pass),
        log_parser=instance.log_parser,
        eval_type=instance.eval_type,
    )


def _environment(log: str) -> str:
    """Return the fault of the machine, such as a full disk, that the official patterns find in a log, or ``""``."""
    official_grading()
    failures = importlib.import_module("swebench.harness.infra_failure")
    found = failures.classify_text(log)
    return found[0] if found and found[1] == failures.TIER_ENVIRONMENT else ""


# The official functions

_HARNESS = "swebench.harness"
_loading = threading.Lock()


@cache
def official_grading() -> Any:
    """Import ``swebench.harness.grading`` without running the ``__init__`` of its package.

    That ``__init__`` imports ``modal``, ``datasets`` and ``docker`` (4 s and 180 MB), which grading does not
    use. An empty package stands in ``sys.modules`` during the import and is removed afterwards, so a later
    ``import swebench.harness`` gets the whole package.
    """
    swebench = need("swebench", "swebench", "grading a patch")
    with _loading:
        if _HARNESS in sys.modules:
            return importlib.import_module(f"{_HARNESS}.grading")
        bare = ModuleType(_HARNESS)
        bare.__path__ = [str(Path(path) / "harness") for path in swebench.__path__]
        sys.modules[_HARNESS] = bare
        try:
            return importlib.import_module(f"{_HARNESS}.grading")
        finally:
            del sys.modules[_HARNESS]
