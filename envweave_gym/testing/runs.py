"""The lists of all checks, and running those that fit an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envweave_gym.testing.game_checks import (
    check_aec_and_parallel_agree,
    check_aec_api,
    check_aec_seeds,
    check_game_render_modes,
    check_max_cycles,
    check_parallel_api,
    check_parallel_seeds,
)
from envweave_gym.testing.game_stream_checks import check_game_stream_is_well_formed
from envweave_gym.testing.gym_checks import (
    check_gymnasium_api,
    check_passive_api,
    check_render_modes,
    check_spec_survives_json,
)
from envweave_gym.testing.misuse_checks import (
    check_bad_seeds_are_refused,
    check_close_twice,
    check_invalid_actions_change_nothing,
    check_random_actions_never_raise,
    check_step_needs_reset,
    check_unknown_arguments_are_refused,
)
from envweave_gym.testing.seed_checks import (
    check_deepcopy_continues_the_episode,
    check_different_seeds_differ,
    check_global_rngs_untouched,
    check_pickling_continues_the_episode,
    check_same_seed_same_trace,
    check_unseeded_resets,
)
from envweave_gym.testing.stream_checks import check_stream_is_well_formed
from envweave_gym.testing.subject import ConformanceError, NotApplicable, Subject, subject_of
from envweave_gym.testing.vector_checks import (
    check_async_equals_single,
    check_autoreset_equals_single,
    check_vector_equals_single,
)

Check = Callable[[Subject], Any]
PASSED = "passed"

SHARED_CHECKS: list[Check] = [
    check_same_seed_same_trace,
    check_different_seeds_differ,
    check_unseeded_resets,
    check_global_rngs_untouched,
    check_pickling_continues_the_episode,
    check_deepcopy_continues_the_episode,
    check_random_actions_never_raise,
    check_invalid_actions_change_nothing,
    check_step_needs_reset,
    check_bad_seeds_are_refused,
    check_unknown_arguments_are_refused,
    check_close_twice,
]
"""The checks of both kinds."""

GYM_CHECKS: list[Check] = [
    check_gymnasium_api,
    check_passive_api,
    check_spec_survives_json,
    *SHARED_CHECKS,
    check_stream_is_well_formed,
    check_vector_equals_single,
    check_autoreset_equals_single,
    check_async_equals_single,
    check_render_modes,
]
"""Every check of a Gymnasium environment."""

GAME_CHECKS: list[Check] = [
    check_aec_api,
    check_parallel_api,
    check_aec_seeds,
    check_parallel_seeds,
    check_max_cycles,
    *SHARED_CHECKS,
    check_aec_and_parallel_agree,
    check_game_stream_is_well_formed,
    check_game_render_modes,
]
"""Every check of a PettingZoo environment."""


def checks_of(subject: Subject) -> list[Check]:
    """The checks for its kind, single-agent or game; for both where one ID has both."""
    games = GAME_CHECKS if {"aec", "parallel"} & set(subject.apis) else []
    return list(dict.fromkeys([*(GYM_CHECKS if "gym" in subject.apis else []), *games]))


def name_of(check: Check) -> str:
    """What a check is called in reports: its function's name without ``check_``."""
    return getattr(check, "__name__", str(check)).removeprefix("check_")


def check_all(name: str, /, *, start_methods: tuple[str, ...] = ("fork",), **kwargs: Any) -> dict[str, str]:
    """Run every check on an environment made with ``kwargs``; raise one error that names all that failed.

    Gives what became of each check: ``"passed"``, or why it does not apply. ``start_methods`` are those of
    ``AsyncVectorEnv``; ``spawn`` and ``forkserver`` take seconds each.
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
