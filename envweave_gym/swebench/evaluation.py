"""A patch is tried: applied to the repository of its instance, and judged by the instance's tests."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

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
from envweave_gym.swebench.diffs import LONGEST, Diff, cut_off, parsed
from envweave_gym.swebench.grading import Tests, Verdict, check_instance, check_tests, grade
from envweave_gym.swebench.phases import BY_PATCH, Applied, apply_and_test, run_tests
from envweave_gym.swebench.policy import violations, violations_by_patch, violations_of_tree
from envweave_gym.swebench.slots import check_at_once, turn
from envweave_gym.swebench.workspace import SIGNALS, NotHere, Workspace

TIMEOUT = 1800.0
"""Default time limit of the tests in seconds."""
LOG_TAIL = 4000
"""Characters of the end of the log that are retained."""
PHASES: tuple[str, ...] = ("wait", "start", "apply", "tests", "grade", "close")
"""The keys of :attr:`Evaluation.timings`."""
LOSSES = (NotAvailable, SessionLost, AtCapacity)
"""Exceptions that mean a lost workspace; ``MissingExtra`` is an installation error instead."""
_BACKENDS = {
    "docker": "envweave_gym.swebench.docker_evaluation",
    "local": "envweave_gym.swebench.local_evaluation",
}
BACKENDS = tuple(_BACKENDS)


@dataclass(frozen=True)
class Evaluation:
    """What became of a patch."""

    applied: bool = False
    apply_cmd: str = ""
    """The official command that took it."""
    resolved: bool = False
    """Whether all tests that count pass."""
    f2p: float = 0.0
    """Which part of the tests that the gold patch makes pass do so."""
    p2p: float = 0.0
    """Which part of those that passed before still do."""
    tests_status: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    """The names of both kinds, by whether they passed; empty where there are no results."""
    problem: str = ""
    """Why there are no results, in a sentence."""
    violations: tuple[str, ...] = ()
    """Why the patch was refused, in sentences."""
    log_tail: str = ""
    """The end of what the tests have printed, or of what git says of a patch that it does not take."""
    timed_out: bool = False
    timings: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    """Seconds by phase."""
    fault: Fault | None = None
    """The failure of the workspace; nothing is known of the patch then."""


@dataclass(frozen=True)
class Trial:
    """How patches are tried."""

    backend: str = "docker"
    """Where: ``"docker"`` or ``"local"``."""
    tests: Tests = "all"
    """Which tests count: ``"all"``, or ``"fail_to_pass"`` alone."""
    max_tests: int | None = None
    """Limit of the tests that passed before and count; a seeded choice."""
    timeout: float = TIMEOUT
    """Seconds that the tests may take."""
    at_once: int | None = None
    """Limit of concurrent evaluations of all processes of this user; by default one for each core."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the backend's ``Options`` are to be."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            known = " and ".join(map(repr, BACKENDS))
            raise InvalidArgument(f"evaluation={shown(self.backend)} is unknown; there are {known}")
        check_tests(self.tests, self.max_tests)
        check_at_once(self.at_once)
        timeout: Any = self.timeout
        if type(timeout) not in (int, float) or not (math.isfinite(timeout) and timeout > 0):
            raise InvalidArgument(f"timeout={shown(timeout)} is no number of seconds; give one above 0")

        self._check_options()

    def _check_options(self) -> None:
        place = self._module()
        known = [one.name for one in fields(place.Options)]
        for name in self.options:
            if name not in known:
                raise InvalidArgument(
                    f"evaluation_kwargs have {shown(name)}, which evaluation={self.backend!r} does not take"
                    f"{nearest(str(name), known)}; it takes {', '.join(known)}"
                )
        place.Options(**self.options)

    def _module(self) -> Any:
        return importlib.import_module(_BACKENDS[self.backend])

    def opened(self, instance: Instance) -> Workspace:
        """A workspace for one evaluation, or for a look at the repository."""
        return self._module().open_workspace(instance, **self.options)


def evaluate(
    instance: Instance, diff: str, trial: Trial | None = None, opened: Callable[[], Workspace] | None = None
) -> Evaluation:
    """Try a diff on its instance, in a fresh workspace or in the one that ``opened`` gives.

    A defect of the diff is in ``violations`` or ``problem``; a failure of the workspace is a ``fault``.
    Neither raises; an instance whose patches nobody can judge is refused.
    """
    check_instance(instance)
    found = parsed(diff[: LONGEST + 1])  # one that is longer is refused
    if refused := violations(diff, found, instance):
        return Evaluation(violations=refused)
    if (problem := cut_off(found)) is not None:
        return Evaluation(problem=problem)
    return _lost_or(lambda clock: _evaluated(instance, found, trial or Trial(), clock, opened))


def baseline(instance: Instance, trial: Trial) -> Evaluation:
    """What the tests say without any patch: a part of them may pass by then."""
    return _lost_or(lambda clock: _evaluated(instance, None, trial, clock))


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.timings[name] += time.perf_counter() - begun

    def part(self, name: str, whole: str, seconds: float) -> None:
        """So much of one phase was another."""
        self.timings[name] += seconds
        self.timings[whole] -= seconds


def _lost_or(evaluated: Callable[[_Clock], Evaluation]) -> Evaluation:
    """What an evaluation gives, or the fault that it was lost by."""
    clock = _Clock()
    try:
        return evaluated(clock)
    except MissingExtra:
        raise
    except LOSSES as error:
        return Evaluation(fault=loss_of(error), timings=clock.timings)


def loss_of(error: BaseException) -> Fault:
    """The fault that a place of evaluations was lost by; what is not there is not tried again."""
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
    if found.environment and (diff is None or _is_broken(instance, trial)):
        raise NotAvailable(
            f"the place where {instance.instance_id} is tried is broken ({found.environment}), whatever the "
            f"patch is; look at its log: {found.evaluation.log_tail[-500:]}"
        )
    return replace(found.evaluation, timings=clock.timings)


@dataclass(frozen=True)
class _Tried:
    evaluation: Evaluation
    environment: str = ""


def _is_broken(instance: Instance, trial: Trial) -> bool:
    """Whether the tests fail to run without any patch too: a patch can print whatever it likes."""
    clock = _Clock()
    with _workspace(instance, trial, clock) as workspace:
        return bool(_tried(workspace, instance, None, trial, clock).environment)


@contextmanager
def _workspace(
    instance: Instance, trial: Trial, clock: _Clock, opened: Callable[[], Workspace] | None = None
) -> Generator[Workspace]:
    with ExitStack() as stack:
        with clock.phase("wait"):
            stack.enter_context(turn(trial.at_once))
        with clock.phase("start"):
            workspace = trial.opened(instance) if opened is None else opened()
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
    clock.part("apply", "tests", applied.seconds)
    if diff is not None:
        refused = violations_of_tree(applied.touched, diff, instance)
        if applied.command == BY_PATCH:
            refused += violations_by_patch(diff)
        if refused:
            return _Tried(Evaluation(violations=refused))
        given = Evaluation(applied=bool(applied.command), apply_cmd=applied.command)
        if not given.applied:
            return _Tried(_not_applied(applied.log, ran.timed_out, trial.timeout))
    tail = ran.output[-LOG_TAIL:]
    if ran.timed_out:
        problem = f"the tests did not end within {trial.timeout:g} s"
        return _Tried(replace(given, problem=problem, log_tail=tail, timed_out=True))
    with clock.phase("grade"):
        verdict = grade(instance, ran.output, tests=trial.tests, max_tests=trial.max_tests)
    if ran.code > SIGNALS and not verdict.problem:  # what the script prints last may be printed by others
        verdict = Verdict(problem="the script was killed before it was done")
    return _Tried(_judged(given, verdict, tail), verdict.environment)


def _not_applied(log: str, timed_out: bool, timeout: float) -> Evaluation:
    problem = f"applying it did not end within {timeout:g} s" if timed_out else "the patch does not apply"
    return Evaluation(problem=problem, log_tail=log[-LOG_TAIL:], timed_out=timed_out)


def _judged(given: Evaluation, verdict: Verdict, tail: str) -> Evaluation:
    return replace(
        given,
        resolved=verdict.resolved,
        f2p=verdict.f2p,
        p2p=verdict.p2p,
        tests_status=verdict.tests_status,
        problem=verdict.problem,
        log_tail=tail,
    )
