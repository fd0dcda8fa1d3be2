"""Running all checks that fit an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.testing.game_checks import GAME_CHECKS
from envweave_gym.testing.gym_checks import GYM_CHECKS
from envweave_gym.testing.subject import ConformanceError, NotApplicable, Subject, subject_of

Check = Callable[[Subject], Any]
PASSED = "passed"


def checks_of(subject: Subject) -> list[Check]:
    """The checks for its kind, single-agent or game; for both where one ID has both."""
    games = GAME_CHECKS if {"aec", "parallel"} & set(subject.apis) else []
    return list(dict.fromkeys([*(GYM_CHECKS if "gym" in subject.apis else []), *games]))


def name_of(check: Check) -> str:
    """What a check is called in reports: its function's name without ``check_``."""
    return getattr(check, "__name__", str(check)).removeprefix("check_")


def check_all(env_id: str, *, start_methods: tuple[str, ...] = ("fork",), **kwargs: Any) -> dict[str, str]:
    """Run every check on an environment made with ``kwargs``; raise one error that names all that failed.

    Gives what became of each check: ``"passed"``, or why it does not apply. ``start_methods`` are those of
    ``AsyncVectorEnv``; ``spawn`` and ``forkserver`` take seconds each.
    """
    subject = subject_of(env_id, start_methods=start_methods, **kwargs)
    subject.probe()
    became: dict[str, str] = {}
    failures: list[str] = []
    for check in checks_of(subject):
        name = name_of(check)
        try:
            check(subject)
        except NotApplicable as reason:
            became[name] = str(reason)
        except ConformanceError as error:
            failures.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001 - a foreign environment may raise anything
            failures.append(f"{name}: {type(error).__name__}: {error}")
        else:
            became[name] = PASSED
    if failures:
        failed = f"{len(failures)} of {len(failures) + len(became)} checks fail"
        raise ConformanceError("\n- ".join([f"{env_id}: {failed}", *failures]))
    return became
