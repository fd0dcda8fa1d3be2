"""The conformance kit: tests that an environment keeps the rules that trainers, vectors and servers rely on.

``check_all("my/Env-v0")`` runs every check on any name that :func:`envweave_gym.make` takes. ``pytest
--envweave-id my/Env-v0`` does the same, with one test item for each check. A check is a plain function that takes
a :class:`Subject`, and works without pytest.
"""

from envweave_gym.testing.game_checks import check_aec_and_parallel_agree as check_aec_and_parallel_agree
from envweave_gym.testing.game_checks import check_aec_api as check_aec_api
from envweave_gym.testing.game_checks import check_aec_seeds as check_aec_seeds
from envweave_gym.testing.game_checks import check_game_render_modes as check_game_render_modes
from envweave_gym.testing.game_checks import check_max_cycles as check_max_cycles
from envweave_gym.testing.game_checks import check_parallel_api as check_parallel_api
from envweave_gym.testing.game_checks import check_parallel_seeds as check_parallel_seeds
from envweave_gym.testing.game_stream_checks import (
    check_game_stream_is_well_formed as check_game_stream_is_well_formed,
)
from envweave_gym.testing.gym_checks import check_gymnasium_api as check_gymnasium_api
from envweave_gym.testing.gym_checks import check_passive_api as check_passive_api
from envweave_gym.testing.gym_checks import check_render_modes as check_render_modes
from envweave_gym.testing.gym_checks import check_spec_survives_json as check_spec_survives_json
from envweave_gym.testing.misuse_checks import check_bad_seeds_are_refused as check_bad_seeds_are_refused
from envweave_gym.testing.misuse_checks import check_close_twice as check_close_twice
from envweave_gym.testing.misuse_checks import (
    check_invalid_actions_change_nothing as check_invalid_actions_change_nothing,
)
from envweave_gym.testing.misuse_checks import (
    check_random_actions_never_raise as check_random_actions_never_raise,
)
from envweave_gym.testing.misuse_checks import check_step_needs_reset as check_step_needs_reset
from envweave_gym.testing.misuse_checks import (
    check_unknown_arguments_are_refused as check_unknown_arguments_are_refused,
)
from envweave_gym.testing.mutation_checks import (
    check_observations_stay_as_given as check_observations_stay_as_given,
)
from envweave_gym.testing.mutation_checks import (
    check_render_changes_nothing as check_render_changes_nothing,
)
from envweave_gym.testing.reproducibility_checks import (
    check_deepcopy_continues_the_episode as check_deepcopy_continues_the_episode,
)
from envweave_gym.testing.reproducibility_checks import (
    check_different_seeds_differ as check_different_seeds_differ,
)
from envweave_gym.testing.reproducibility_checks import (
    check_global_rngs_untouched as check_global_rngs_untouched,
)
from envweave_gym.testing.reproducibility_checks import (
    check_pickling_continues_the_episode as check_pickling_continues_the_episode,
)
from envweave_gym.testing.reproducibility_checks import (
    check_same_seed_same_trace as check_same_seed_same_trace,
)
from envweave_gym.testing.reproducibility_checks import check_unseeded_resets as check_unseeded_resets
from envweave_gym.testing.runs import GAME_CHECKS as GAME_CHECKS
from envweave_gym.testing.runs import GYM_CHECKS as GYM_CHECKS
from envweave_gym.testing.runs import check_all as check_all
from envweave_gym.testing.runs import checks_of as checks_of
from envweave_gym.testing.stream_checks import check_stream_is_well_formed as check_stream_is_well_formed
from envweave_gym.testing.subject import ConformanceError as ConformanceError
from envweave_gym.testing.subject import NotApplicable as NotApplicable
from envweave_gym.testing.subject import Subject as Subject
from envweave_gym.testing.subject import subject_of as subject_of
from envweave_gym.testing.vector_checks import check_async_equals_single as check_async_equals_single
from envweave_gym.testing.vector_checks import check_autoreset_equals_single as check_autoreset_equals_single
from envweave_gym.testing.vector_checks import check_vector_equals_single as check_vector_equals_single
from envweave_gym.testing.vector_misuse_checks import (
    check_vectors_refuse_misuse as check_vectors_refuse_misuse,
)
