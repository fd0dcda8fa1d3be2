"""The verdict: what the official functions read out of what the tests have printed.

The command is always the official one; ``tests`` and ``max_tests`` only narrow which tests count, as the
parsers lose some where a part of them is run.
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

from envweave_gym.core.faults import InvalidArgument, nearest, need, shown
from envweave_gym.core.seeding import mix
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.phases import official_script

Tests = Literal["all", "fail_to_pass"]
TESTS = ("all", "fail_to_pass")

START, END, EXIT_CODE = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
_COMPLAINT = re.compile(r"^(?:error|fatal): ", re.MULTILINE)
_APPLY_TESTS = "+ git apply -v -"
_FULL = "RESOLVED_FULL"


@dataclass(frozen=True)
class Verdict:
    """What the tests say."""

    resolved: bool = False
    f2p: float = 0.0
    """Which part of the tests that the gold patch makes pass do so."""
    p2p: float = 0.0
    """Which part of those that passed before still do."""
    tests_status: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    """The names of both kinds, by whether they passed; empty where no results were found."""
    problem: str = ""
    """Why no results count, in a sentence; empty where they do."""
    environment: str = ""
    """Which fault of the environment the log speaks of, where there are no results."""


def check_tests(tests: Any, max_tests: Any) -> None:
    """Refuse what narrows nothing."""
    if tests not in TESTS:
        raise InvalidArgument(f"tests={shown(tests)} is unknown; there are {' and '.join(map(repr, TESTS))}")
    if max_tests is not None and (type(max_tests) is not int or max_tests < 0):
        raise InvalidArgument(f"max_tests={shown(max_tests)} is no number of tests; give an int >= 0 or None")


def check_instance(instance: Instance) -> None:
    """Refuse an instance of which nobody knows how patches are judged: every one would be wrong, or right."""
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
    """The verdict on what the official script has printed.

    Of the tests that passed before, ``max_tests`` count, the same ones for all patches of an instance; with
    ``tests="fail_to_pass"`` none do. Where the log looks like anything but a whole run, nothing has passed.
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
    """Which of the tests that passed before count."""
    if tests == "fail_to_pass":
        return ()
    names = instance.pass_to_pass
    if max_tests is None or len(names) <= max_tests:
        return names
    key = int.from_bytes(instance.instance_id.encode()[-8:], "big")
    drawn = sorted(range(len(names)), key=lambda number: mix(key, number))
    return [names[number] for number in sorted(drawn[:max_tests])]


def _problem(log: str) -> str:
    """Why a log is not that of a whole run of the official script, if so."""
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
    """The official functions, which know the parser and the kind of evaluation of this instance."""
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
    """The status of each test; the official function reads it from a file."""
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
    """The fault of the environment that the official signatures find in a log."""
    official_grading()
    failures = importlib.import_module("swebench.harness.infra_failure")
    found = failures.classify_text(log)
    return found[0] if found and found[1] == failures.TIER_ENVIRONMENT else ""


# The official functions

_HARNESS = "swebench.harness"
_loading = threading.Lock()


@cache
def official_grading() -> Any:
    """The official module of these functions.

    Its package imports everything there is (``modal``, ``datasets``, ``docker``: four seconds and 180 MB) for
    the sake of modules that grading does not use. So the module is imported with a bare package in place of
    that, which is gone afterwards: whoever imports the package itself gets it whole.
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
