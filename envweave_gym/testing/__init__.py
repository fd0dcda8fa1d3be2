"""The conformance kit: tests that an environment keeps the rules that trainers, vectors and servers rely on.

``check_all("my/Env-v0")`` runs every check on any name that :func:`envweave_gym.make` takes. ``pytest
--envweave-id my/Env-v0`` does the same, with one test item for each check. A check is a plain function that takes
a :class:`Subject`, and works without pytest.
"""

from __future__ import annotations

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
from envweave_gym.testing.runs import GAME_CHECKS, GYM_CHECKS, check_all, checks_of
from envweave_gym.testing.seed_checks import (
    check_deepcopy_continues_the_episode,
    check_different_seeds_differ,
    check_global_rngs_untouched,
    check_pickling_continues_the_episode,
    check_same_seed_same_trace,
    check_unseeded_resets,
)
from envweave_gym.testing.side_effect_checks import (
    check_observations_stay_as_given,
    check_render_changes_nothing,
)
from envweave_gym.testing.stream_checks import check_stream_is_well_formed
from envweave_gym.testing.subject import ConformanceError, NotApplicable, Subject, subject_of
from envweave_gym.testing.vector_checks import (
    check_async_equals_single,
    check_autoreset_equals_single,
    check_vector_equals_single,
)
from envweave_gym.testing.vector_misuse_checks import check_vectors_refuse_misuse

__all__ = [
    "GAME_CHECKS",
    "GYM_CHECKS",
    "ConformanceError",
    "NotApplicable",
    "Subject",
    "check_aec_and_parallel_agree",
    "check_aec_api",
    "check_aec_seeds",
    "check_all",
    "check_async_equals_single",
    "check_autoreset_equals_single",
    "check_bad_seeds_are_refused",
    "check_close_twice",
    "check_deepcopy_continues_the_episode",
    "check_different_seeds_differ",
    "check_game_render_modes",
    "check_game_stream_is_well_formed",
    "check_global_rngs_untouched",
    "check_gymnasium_api",
    "check_invalid_actions_change_nothing",
    "check_max_cycles",
    "check_observations_stay_as_given",
    "check_parallel_api",
    "check_parallel_seeds",
    "check_passive_api",
    "check_pickling_continues_the_episode",
    "check_random_actions_never_raise",
    "check_render_changes_nothing",
    "check_render_modes",
    "check_same_seed_same_trace",
    "check_spec_survives_json",
    "check_step_needs_reset",
    "check_stream_is_well_formed",
    "check_unknown_arguments_are_refused",
    "check_unseeded_resets",
    "check_vector_equals_single",
    "check_vectors_refuse_misuse",
    "checks_of",
    "subject_of",
]
