"""The lists of all checks, and running those that fit an environment.

A check is listed by being written: a function ``check_…`` in a module whose name says for what kind it is.
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
    seed_checks,
    side_effect_checks,
    stream_checks,
    vector_checks,
    vector_misuse_checks,
)
from envweave_gym.testing.subject import RAISED, ConformanceError, NotApplicable, Subject, subject_of

_CHECKERS = tuple(
    str(Path(package.__file__ or "").parent) + os.sep for package in (envweave_gym, gymnasium, pettingzoo)
)
"""Where the code is that calls environments."""

Check = Callable[[Subject], Any]
PASSED = "passed"


def _checks_in(*modules: ModuleType) -> list[Check]:
    """The checks that are written in these modules, in the order in which they stand there."""
    found = [(module, name, value) for module in modules for name, value in vars(module).items()]
    return [
        value
        for module, name, value in found
        if name.startswith("check_") and value.__module__ == module.__name__
    ]


SHARED_CHECKS = _checks_in(seed_checks, side_effect_checks, misuse_checks)
"""The checks of both kinds."""

GYM_CHECKS = [
    *_checks_in(gym_checks),
    *SHARED_CHECKS,
    *_checks_in(stream_checks, vector_checks, vector_misuse_checks),
]
"""Every check of a Gymnasium environment."""

GAME_CHECKS = [*_checks_in(game_checks), *SHARED_CHECKS, *_checks_in(game_stream_checks)]
"""Every check of a PettingZoo environment."""


def checks_of(subject: Subject) -> list[Check]:
    """The checks for its kind, single-agent or game; for both where one ID has both."""
    games = GAME_CHECKS if {"aec", "parallel"} & set(subject.apis) else []
    return list(dict.fromkeys([*(GYM_CHECKS if "gym" in subject.apis else []), *games]))


def name_of(check: Check) -> str:
    """What a check is called in reports: its function's name without ``check_``."""
    return getattr(check, "__name__", str(check)).removeprefix("check_")


def check_all(name: str, /, *, start_methods: tuple[str, ...] | None = None, **kwargs: Any) -> dict[str, str]:
    """Run every check on an environment made with ``kwargs``; raise one error that names all that failed.

    Checks that fail for one cause are one failure: the first tells it, and names the others. Gives what
    became of each check: ``"passed"``, or why it does not apply. ``start_methods`` are those of
    ``AsyncVectorEnv``, as :func:`subject_of` has them; ``spawn`` and ``forkserver`` take seconds each.
    """
    subject = subject_of(name, start_methods=start_methods, **kwargs)
    subject.probe()
    subject.probe_episode()
    became: dict[str, str] = {}
    failures = Failures()
    for check in checks_of(subject):
        rule = name_of(check)
        try:
            check(subject)
        except NotApplicable as reason:
            became[rule] = str(reason)
        except RAISED as error:
            failures.add(rule, error)
        else:
            became[rule] = PASSED
    if failures.count:
        failed = f"{failures.count} of {failures.count + len(became)} checks fail"
        raise ConformanceError("\n- ".join([f"{name}: {failed}", *failures.sentences()]))
    return became


class Failures:
    """The checks that failed, grouped by cause: the same exception raised in the same line."""

    def __init__(self) -> None:
        self.count = 0
        self._found: list[tuple[str, str, list[str]]] = []
        self._known: dict[Any, int] = {}

    def add(self, rule: str, error: BaseException) -> str | None:
        """Count a failure; gives the earlier rule that failed for the same cause, if there is one."""
        self.count += 1
        causes = causes_of(error)
        number = next((self._known[one] for one in causes if one in self._known), len(self._found))
        self._known |= dict.fromkeys(causes, number)
        if number == len(self._found):  # texts, as the exception would keep the environments alive
            self._found.append((rule, sentence_of(error), []))
            return None
        earlier, _, more = self._found[number]
        more.append(rule)
        return earlier

    def sentences(self) -> list[str]:
        """One text for each cause."""
        return [f"{rule}: {sentence}{_also(more)}" for rule, sentence, more in self._found]


def _also(rules: list[str]) -> str:
    return f" (for the same cause: {', '.join(rules)})" if rules else ""


def sentence_of(error: BaseException) -> str:
    """What failed, in a sentence."""
    return str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"


def causes_of(error: BaseException) -> list[tuple[Any, ...]]:
    """What two failures have in common that are one: the type raised with its text, or with its line.

    A line of a checker raises about many things, so it does not count.
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
