"""The lists of all checks, and running those that fit an environment.

A check is listed by being written: a function ``check_…`` in a module whose name says for what kind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

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
from envweave_gym.testing.subject import ConformanceError, NotApplicable, Subject, subject_of

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

    Gives what became of each check: ``"passed"``, or why it does not apply. ``start_methods`` are those of
    ``AsyncVectorEnv``, as :func:`subject_of` has them; ``spawn`` and ``forkserver`` take seconds each.
    """
    subject = subject_of(name, start_methods=start_methods, **kwargs)
    subject.probe()
    became: dict[str, str] = {}
    failures: list[str] = []
    for check in checks_of(subject):
        rule = name_of(check)
        try:
            check(subject)
        except NotApplicable as reason:
            became[rule] = str(reason)
        except ConformanceError as error:
            failures.append(f"{rule}: {error}")
        except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
            failures.append(f"{rule}: {type(error).__name__}: {error}")
        else:
            became[rule] = PASSED
    if failures:
        failed = f"{len(failures)} of {len(failures) + len(became)} checks fail"
        raise ConformanceError("\n- ".join([f"{name}: {failed}", *failures]))
    return became
