"""Evaluates a patch: applies it to the repository of its instance, and runs and grades the instance's tests."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from envweave_gym.core.config import one_of
from envweave_gym.core.faults import (
    AtCapacity,
    Fault,
    InvalidArgument,
    MissingExtra,
    NotAvailable,
    SessionLost,
    fault_of,
    nearest,
    shown,
)
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.swebench.diffs import MAX_CHARS, Diff, missing_end, parse_diff
from envweave_gym.swebench.evaluation_scripts import BY_PATCH, Applied, apply_and_test, run_tests
from envweave_gym.swebench.evaluation_semaphore import check_at_once, slot
from envweave_gym.swebench.grading import Tests, Verdict, check_instance, check_tests, grade
from envweave_gym.swebench.patch_rules import violations, violations_by_patch, violations_of_tree
from envweave_gym.swebench.workspace import SIGNALS, NotHere, Workspace

TESTS_TIMEOUT_S = 1800.0
LOG_TAIL_CHARS = 4000
PHASES: tuple[str, ...] = ("wait", "start", "apply", "tests", "grade", "close")
"""The phases of an evaluation in order, the keys of :attr:`Evaluation.timings`."""
LOSSES = (NotAvailable, SessionLost, AtCapacity)
"""Exceptions that become faults. ``MissingExtra``, a subclass of one of them, is raised: retries cannot help."""
_BACKENDS = {
    "docker": "envweave_gym.swebench.docker_evaluation",
    "local": "envweave_gym.swebench.local_evaluation",
}
BACKENDS = tuple(_BACKENDS)


@dataclass(frozen=True)
class Evaluation:
    """The result of applying and testing one patch, with its test results or the reason why there are none."""

    applied: bool = False
    apply_cmd: str = ""
    """The command of the official harness that applied the patch; empty if none did."""
    resolved: bool = False
    """Whether all graded tests pass."""
    f2p: float = 0.0
    """The share of the FAIL_TO_PASS tests that pass."""
    p2p: float = 0.0
    """The share of the PASS_TO_PASS tests that pass."""
    tests_status: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    """The names of both kinds of tests, by whether they passed; empty without results."""
    problem: str = ""
    """Why there are no results, as a sentence."""
    violations: tuple[str, ...] = ()
    """The rules that the patch breaks, as sentences; if there are any, it has no test results."""
    log_tail: str = ""
    """The end of the log of the tests, or of git's log if the patch does not apply."""
    timed_out: bool = False
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds spent in each of :data:`PHASES`."""
    fault: Fault | None = None
    """The failure of the workspace, if it failed; the result then says nothing about the patch."""


@dataclass(frozen=True)
class Trial:
    """The settings of evaluations: where they run, which tests are graded, and their limits."""

    backend: str = "docker"
    """``"docker"`` for containers, or ``"local"`` for sandboxed processes on this machine."""
    tests: Tests = "all"
    """The tests that are graded: ``"all"``, or ``"fail_to_pass"`` alone."""
    max_tests: int | None = None
    """Limit of the PASS_TO_PASS tests that are graded; which ones is drawn once for each instance."""
    timeout: float = TESTS_TIMEOUT_S
    """Time limit of the tests, in seconds."""
    at_once: int | None = None
    """Limit of concurrent evaluations of all processes of this user; by default one for each core."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the backend's ``Options``."""

    def __post_init__(self) -> None:
        one_of("evaluation", self.backend, BACKENDS)
        check_tests(self.tests, self.max_tests)
        check_at_once(self.at_once)
        timeout: Any = self.timeout
        if type(timeout) not in (int, float) or not (math.isfinite(timeout) and timeout > 0):
            raise InvalidArgument(f"timeout={shown(timeout)} is no number of seconds; give one above 0")
        self._check_options()

    def _check_options(self) -> None:
        options = self._module().Options
        known = [one.name for one in fields(options)]
        for name in self.options:
            if name not in known:
                raise InvalidArgument(
                    f"evaluation_kwargs have {shown(name)}, which evaluation={self.backend!r} does not take"
                    f"{nearest(str(name), known)}; it takes {', '.join(known)}"
                )
        options(**self.options)

    def _module(self) -> Any:
        return importlib.import_module(_BACKENDS[self.backend])

    def open_workspace(self, instance: Instance) -> Workspace:
        """Open a new workspace of the backend, with the repository of ``instance`` at its base commit."""
        return self._module().open_workspace(instance, **self.options)


def evaluate(
    instance: Instance, diff: str, trial: Trial | None = None, opened: Callable[[], Workspace] | None = None
) -> Evaluation:
    """Apply a diff in a fresh workspace, or in the one that ``opened`` returns, and run and grade the tests.

    ``trial`` is by default ``Trial()``. A defect of the diff is in ``violations`` or ``problem`` of the result,
    a failure of the workspace in ``fault``; neither raises. An instance without tests, or with an unknown log
    parser, raises :class:`InvalidArgument`.
    """
    check_instance(instance)
    found = parse_diff(diff[: MAX_CHARS + 1])  # one character too many, so that the rules see the excess
    if refused := violations(diff, found, instance):
        return Evaluation(violations=refused)
    if (problem := missing_end(found)) is not None:
        return Evaluation(problem=problem)
    return _or_fault(lambda clock: _evaluated(instance, found, trial or Trial(), clock, opened))


def baseline(instance: Instance, trial: Trial) -> Evaluation:
    """Run and grade the tests without a patch, as some FAIL_TO_PASS tests may pass already."""
    return _or_fault(lambda clock: _evaluated(instance, None, trial, clock))


class _Clock:
    """Stopwatch that sums up the seconds of each phase."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] += time.perf_counter() - begun

    def move(self, seconds: float, source: str, target: str) -> None:
        """Move seconds from the sum of phase ``source`` to that of ``target``."""
        self.timings[source] -= seconds
        self.timings[target] += seconds


def _or_fault(evaluated: Callable[[_Clock], Evaluation]) -> Evaluation:
    """Return ``evaluated(clock)``; if it raises one of :data:`LOSSES`, return an evaluation with the fault."""
    clock = _Clock()
    try:
        return evaluated(clock)
    except MissingExtra:
        raise
    except LOSSES as error:
        return Evaluation(fault=loss_of(error), timings=clock.timings)


def loss_of(error: BaseException) -> Fault:
    """Convert one of :data:`LOSSES` to a fault; ``NotHere`` gives one that is not retryable."""
    fault = fault_of(error)
    return msgspec.structs.replace(fault, retryable=False) if isinstance(error, NotHere) else fault


def _evaluated(
    instance: Instance,
    diff: Diff | None,
    trial: Trial,
    clock: _Clock,
    opened: Callable[[], Workspace] | None = None,
) -> Evaluation:
    with _workspace(instance, trial, clock, opened) as workspace:
        found = _tried(workspace, instance, diff, trial, clock)
    # A log may look like a broken machine because the patch printed that, so the tests run again without it.
    if found.environment and (diff is None or _is_broken(instance, trial)):
        raise NotAvailable(
            f"the workspace of {instance.instance_id} is broken ({found.environment}), whatever the "
            f"patch is; look at its log: {found.evaluation.log_tail[-500:]}"
        )
    return replace(found.evaluation, timings=clock.timings)


@dataclass(frozen=True)
class _Tried:
    """An evaluation, and whether its log looks like a fault of the machine, which a patch can imitate."""

    evaluation: Evaluation
    environment: str = ""
    """The fault of the machine that the log shows, such as a full disk; empty if there is none."""


def _is_broken(instance: Instance, trial: Trial) -> bool:
    """Run the tests without a patch; return whether their log shows a fault of the machine too."""
    clock = _Clock()
    with _workspace(instance, trial, clock) as workspace:
        return bool(_tried(workspace, instance, None, trial, clock).environment)


@contextmanager
def _workspace(
    instance: Instance, trial: Trial, clock: _Clock, opened: Callable[[], Workspace] | None = None
) -> Generator[Workspace]:
    with ExitStack() as stack:
        with clock.phase("wait"):
            stack.enter_context(slot(trial.at_once))
        with clock.phase("start"):
            workspace = trial.open_workspace(instance) if opened is None else opened()
        stack.enter_context(_closing(workspace, clock))
        yield workspace


@contextmanager
def _closing(workspace: Workspace, clock: _Clock) -> Generator[None]:
    try:
        yield
    finally:
        with clock.phase("close"):
            workspace.close()


def _tried(
    workspace: Workspace, instance: Instance, diff: Diff | None, trial: Trial, clock: _Clock
) -> _Tried:
    given = Evaluation()
    with clock.phase("tests"):
        if diff is None:
            applied, ran = Applied(""), run_tests(workspace, instance, trial.timeout)
        else:
            applied, ran = apply_and_test(workspace, instance, diff, trial.timeout)
    clock.move(applied.seconds, "tests", "apply")  # both ran as one command
    if diff is not None:
        refused = violations_of_tree(applied.touched, diff, instance)
        if applied.command == BY_PATCH:
            refused += violations_by_patch(diff)
        if refused:
            return _Tried(Evaluation(violations=refused))
        given = Evaluation(applied=bool(applied.command), apply_cmd=applied.command)
        if not given.applied:
            return _Tried(_not_applied(applied.log, ran.timed_out, trial.timeout))
    tail = ran.output[-LOG_TAIL_CHARS:]
    if ran.timed_out:
        problem = f"the tests did not end within {trial.timeout:g} s"
        return _Tried(replace(given, problem=problem, log_tail=tail, timed_out=True))
    with clock.phase("grade"):
        verdict = grade(instance, ran.output, tests=trial.tests, max_tests=trial.max_tests)
    if ran.code > SIGNALS and not verdict.problem:  # the log looks whole, but a patch may have forged its end
        verdict = Verdict(problem="the script was killed before it was done")
    graded = replace(
        given,
        resolved=verdict.resolved,
        f2p=verdict.f2p,
        p2p=verdict.p2p,
        tests_status=verdict.tests_status,
        problem=verdict.problem,
        log_tail=tail,
    )
    return _Tried(graded, verdict.environment)


def _not_applied(log: str, timed_out: bool, timeout: float) -> Evaluation:
    problem = f"applying it did not end within {timeout:g} s" if timed_out else "the patch does not apply"
    return Evaluation(problem=problem, log_tail=log[-LOG_TAIL_CHARS:], timed_out=timed_out)
