"""The lists of all checks, and ``check_all``, which runs those that apply to an environment.

Every function ``check_…`` of a module of checks is listed by itself, so a new check needs no registration.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pettingzoo

import envweave_gym
from envweave_gym.testing import (
    game_checks,
    game_stream_checks,
    gym_checks,
    misuse_checks,
    mutation_checks,
    reproducibility_checks,
    stream_checks,
    vector_checks,
    vector_misuse_checks,
)
from envweave_gym.testing.subject import (
    RAISED,
    ConformanceError,
    NotApplicable,
    Subject,
    TracesDiffer,
    subject_of,
)

_CHECKERS = tuple(
    str(Path(package.__file__ or "").parent) + os.sep for package in (envweave_gym, gymnasium, pettingzoo)
)
"""Folders of the packages that call environments, in which an exception's line does not identify its cause."""

SAME_SEED = "same_seed_same_trace"
"""Check on which all other comparisons of episodes rest."""
_UNREPRODUCIBLE = ("one seed plays differently",)

Check = Callable[[Subject], Any]
PASSED = "passed"


def _checks_in(*modules: ModuleType) -> list[Check]:
    """Return the checks that these modules define, in source order; imported ones are left out."""
    found = [(module, name, value) for module in modules for name, value in vars(module).items()]
    return [
        value
        for module, name, value in found
        if name.startswith("check_") and value.__module__ == module.__name__
    ]


SHARED_CHECKS = _checks_in(reproducibility_checks, mutation_checks, misuse_checks)
"""The checks that apply to Gymnasium and to PettingZoo environments."""

GYM_CHECKS = [
    *_checks_in(gym_checks),
    *SHARED_CHECKS,
    *_checks_in(stream_checks, vector_checks, vector_misuse_checks),
]
"""Every check of a Gymnasium environment."""

GAME_CHECKS = [*_checks_in(game_checks), *SHARED_CHECKS, *_checks_in(game_stream_checks)]
"""Every check of a PettingZoo environment."""


def checks_of(subject: Subject) -> list[Check]:
    """Return the checks of the subject's APIs: Gymnasium's, PettingZoo's, or both if the ID has both."""
    games = GAME_CHECKS if {"aec", "parallel"} & set(subject.apis) else []
    return list(dict.fromkeys([*(GYM_CHECKS if "gym" in subject.apis else []), *games]))


def name_of(check: Check) -> str:
    """Return the name of a check in reports: its function's name without ``check_``."""
    return getattr(check, "__name__", str(check)).removeprefix("check_")


def check_all(name: str, /, *, start_methods: tuple[str, ...] | None = None, **kwargs: Any) -> dict[str, str]:
    """Run every check on an environment made with ``kwargs``; return the outcome of each check by its name.

    An outcome is ``"passed"``, or the reason why the check does not apply. If any check fails, raise one
    :class:`ConformanceError` that lists all failures; checks that fail for the same cause share one entry.
    ``start_methods`` are those of :func:`subject_of`; ``spawn`` and ``forkserver`` take seconds each.
    """
    subject = subject_of(name, start_methods=start_methods, **kwargs)
    subject.probe()
    subject.probe_episode()
    outcomes: dict[str, str] = {}
    failures = Failures()
    for check in checks_of(subject):
        rule = name_of(check)
        try:
            check(subject)
        except NotApplicable as reason:
            outcomes[rule] = str(reason)
        except RAISED as error:
            failures.add(rule, error)
        else:
            outcomes[rule] = PASSED
    if failures.count:
        failed = f"{failures.count} of {failures.count + len(outcomes)} checks fail"
        raise ConformanceError("\n- ".join([f"{name}: {failed}", *failures.sentences()]))
    return outcomes


class Failures:
    """The checks that failed, grouped by cause: the same exception raised in the same line.

    Where one seed plays differently, later comparisons of episodes fail for that cause.
    """

    def __init__(self) -> None:
        self.count = 0
        self._found: list[tuple[str, str, list[str]]] = []
        self._known: dict[Any, int] = {}

    def add(self, rule: str, error: BaseException) -> str | None:
        """Record a failure; return the name of the check that first failed for the same cause, or ``None``."""
        self.count += 1
        causes = causes_of(error)
        if isinstance(error, TracesDiffer) and (rule == SAME_SEED or _UNREPRODUCIBLE in self._known):
            causes.append(_UNREPRODUCIBLE)
        number = next((self._known[one] for one in causes if one in self._known), len(self._found))
        self._known |= dict.fromkeys(causes, number)
        if number == len(self._found):  # texts, as the exception would keep the environments alive
            self._found.append((rule, sentence_of(error), []))
            return None
        earlier, _, more = self._found[number]
        more.append(rule)
        return earlier

    def sentences(self) -> list[str]:
        """Return one text for each cause, with the names of all checks that failed for it."""
        return [f"{rule}: {sentence}{_also(more)}" for rule, sentence, more in self._found]


def _also(rules: list[str]) -> str:
    return f" (for the same cause: {', '.join(rules)})" if rules else ""


def sentence_of(error: BaseException) -> str:
    """Return the exception's message; that of a foreign exception begins with its type."""
    return str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"


def causes_of(error: BaseException) -> list[tuple[Any, ...]]:
    """Return the keys by which failures are grouped: exception type with text, and exception type with line.

    A line inside a checker is left out, because one such line raises for many different causes.
    """
    cause = error.__cause__ if isinstance(error, ConformanceError) and error.__cause__ else error
    frames = traceback.extract_tb(cause.__traceback__)
    kind, text = type(cause).__name__, str(cause)
    causes: list[tuple[Any, ...]] = [(kind, text)] if text else []
    if not isinstance(cause, ConformanceError) and frames:
        last = frames[-1]
        if not text or not last.filename.startswith(_CHECKERS):
            causes.append((kind, last.filename, last.lineno))
    return causes
